"""DeepSpeed configuration of a training run; does not import DeepSpeed, which need not be installed."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import InputError, MachineError
from tunefleet.spec import CommonTrainingSpec
from tunefleet.spec.options.training_options import path_keys
from tunefleet.workloads.training.model.hardware import DtypeName

_BUCKET: Final = 50_000_000
_BY_TRAINER: Final = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
POINTER: Final = "training.deepspeed"


def configuration(training: CommonTrainingSpec, compute: DtypeName, inputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the user's DeepSpeed configuration or the default one; missing keys are filled in from `training`."""
    given = training.deepspeed
    config = _read(Path(inputs.get(POINTER, given))) if isinstance(given, str) else given
    found = dict(config) if config is not None else _ours(training.stage)
    _check_batch(found, training)
    for name in _BY_TRAINER:
        found.setdefault(name, "auto")
    # Overwritten even if given: after a retry with a smaller batch only the product of both still matches.
    found |= {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        found.setdefault(name, {"enabled": compute == dtype})
    zero = found.get("zero_optimization")
    if isinstance(zero, dict) and zero.get("stage") == 3:
        # Without it, ZeRO-3 checkpoints would contain empty weights.
        found["zero_optimization"] = {"stage3_gather_16bit_weights_on_model_save": True, **zero}
    return found


def _check_batch(config: Mapping[str, Any], training: CommonTrainingSpec) -> None:
    """Refuse a configuration with another batch size; an inline one was already checked at submit."""
    batch, times = training.batch_size, training.gradient_accumulation_steps
    given = config.get("train_micro_batch_size_per_gpu", "auto"), config.get("gradient_accumulation_steps", "auto")
    rows, passes = (known if each == "auto" else each for each, known in zip(given, (batch, times), strict=True))
    if rows * passes != batch * times:
        raise InputError(
            f"`{POINTER}` sets a batch size of {rows} with {passes} gradient accumulation steps, "
            f"but `training` sets {batch} and {times}.",
            hint="Write auto in DeepSpeed's configuration, or the same numbers in both places.",
        )


def _ours(stage: int) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": _BUCKET,
        "allgather_bucket_size": _BUCKET,
    }
    return {"zero_optimization": zero, "steps_per_print": 2000, "wall_clock_breakdown": False}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.expanduser().read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"`{POINTER}` names {path}, which cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"`{POINTER}` names {path}, which contains no JSON object.")
    if (key := next(path_keys(found), None)) is not None:
        raise InputError(
            f"`{POINTER}` names {path}, where {key} is a path on the worker's disk, which is not allowed.",
            hint=f"Remove {key}: offloading to disk is not supported.",
        )
    return found


def require() -> None:
    """Check that DeepSpeed is installed, and set the rank variables of a process without a launcher."""
    if importlib.util.find_spec("deepspeed") is None:
        raise MachineError(
            "The spec requests DeepSpeed, but the package deepspeed is not installed.",
            hint="pip install deepspeed on the worker, or write `training.parallelism: fsdp`.",
        )
    if "RANK" in os.environ:
        return
    # DeepSpeed initializes a process group even for one process, which needs a free port.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(alone)
