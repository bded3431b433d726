"""Whether a job could ever run on this machine: its environments, and a lower bound of its memory on the GPU."""

from __future__ import annotations

import json
import logging
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import InputError
from tunefleet.runtime import envs

logger = logging.getLogger(__name__)

GIB: Final = 1 << 30
_FULL_BYTES: Final = 16.0
"""A parameter that is trained with AdamW: weight, gradient and two moments, in float32."""
_FROZEN_BYTES: Final = {4: 0.55, 8: 1.1, 16: 2.0}
_REFERENCE_BYTES: Final = 2.0
"""A parameter of the untrained copy that `dpo` compares with, in half precision at the least."""
_MAX_HEADER: Final = 100 << 20


def admit(spec: Mapping[str, Any], limit_bytes: int | None, fraction: float) -> None:
    """Refuse a job that needs more than it may have.

    Args:
        limit_bytes: What a training may take; None without a GPU.
    """
    needed = needed_bytes(spec)
    if limit_bytes is not None and needed is not None and needed > limit_bytes:
        raise InputError(
            f"The job needs at least {needed / GIB:.1f} GiB of GPU memory, and GPU_MEMORY_FRACTION={fraction:g} "
            f"allows {limit_bytes / GIB:.1f} GiB.",
            hint="Train with LoRA or in 4 bits, take a smaller model, or raise GPU_MEMORY_FRACTION.",
        )


def refuse_unready(environments: Iterable[str]) -> None:
    """Refuse a job whose environment is not ready on this machine.

    Args:
        environments: The environments that the job runs in, such as that of its trainer.
    """
    for name in environments:
        reason = envs.reason(name)
        if reason is not None:
            raise InputError(reason, hint="Without `framework` or `trainer`, the agent trains with trl.")


def needed_bytes(spec: Mapping[str, Any]) -> int | None:
    """Return the memory of weights, gradients and optimizer, activations left out; None if the model is not here."""
    name = ((spec.get("model") or {}).get("source") or {}).get("identifier")
    folder = Path(str(name)).expanduser()
    if not folder.is_absolute() or not folder.is_dir():
        return None
    count = parameter_count(folder)
    if count is None:
        return None
    if spec.get("taskType") != "lora_sft" and spec.get("lora") is None:
        return int(count * (_FULL_BYTES + (_REFERENCE_BYTES if _holds_reference(spec) else 0)))
    quantization = spec.get("quantization") or {}
    bits = 4 if quantization.get("load_in_4bit") else 8 if quantization.get("load_in_8bit") else 16
    return int(count * _FROZEN_BYTES[bits])


def _holds_reference(spec: Mapping[str, Any]) -> bool:
    """Tell whether an untrained copy of all weights lies in memory, too."""
    early = (spec.get("training") or {}).get("precompute_ref_log_probs")
    return spec.get("taskType") == "dpo" and not early


def parameter_count(folder: Path) -> int | None:
    """Return how many parameters the safetensors files of a model folder hold; None if there are none."""
    count = 0
    for file in folder.glob("*.safetensors"):
        try:
            with file.open("rb") as stream:
                (size,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(min(size, _MAX_HEADER)))
        except (OSError, ValueError, struct.error) as error:
            logger.debug("%s cannot be read: %s", file, error)
            return None
        count += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    return count or None
