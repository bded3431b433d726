"""Checks that a DeepSpeed configuration is consistent with its training options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tunefleet.spec.options.training_options import CommonTrainingSpec

_A_PATH: Final = "is a path; DeepSpeed must not read or write files of its own"
_SAME = (
    ("train_micro_batch_size_per_gpu", "batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
)


def path_keys(config: Any, at: str = "") -> Iterator[str]:
    """Yield the keys of a configuration whose values are paths, which DeepSpeed would read or write.

    Args:
        config: JSON data.
        at: Its dotted path.
    """
    if isinstance(config, dict):
        for key, value in config.items():
            yield from path_keys(value, f"{at}.{key}" if at else str(key))
    elif isinstance(config, list):
        for number, value in enumerate(config):
            yield from path_keys(value, f"{at}.{number}")
    # Any string with a separator counts as a path, whatever its key: DeepSpeed has many such keys.
    elif isinstance(config, str) and (config in {"..", "~"} or "/" in config or "\\" in config):
        yield at


def deepspeed_faults(blocks: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """Find values of `training.deepspeed` that contradict `training`; a file is checked when the job starts.

    Args:
        blocks: As passed to `faults` of a task type.
    """
    training: CommonTrainingSpec | None = blocks.get("training")
    config = training.deepspeed if training is not None else None
    if training is None or not isinstance(config, dict):
        return []
    faults: list[tuple[str, str, str | None]] = [
        (f"training.deepspeed.{key}", _A_PATH, "leave it out: offloading to disk is not supported")
        for key in path_keys(config)
    ]
    # DeepSpeed has its own copies of these options; "auto" takes the trainer's value.
    for theirs, ours in _SAME:
        given, expected = config.get(theirs, "auto"), getattr(training, ours)
        if given not in ("auto", expected):
            hint = f"write auto, or training.{ours}: {given}"
            faults.append((f"training.deepspeed.{theirs}", f"contradicts training.{ours}: {expected}", hint))
    for name in ("bf16", "fp16"):
        block = config.get(name)
        enabled = block.get("enabled", "auto") if isinstance(block, dict) else "auto"
        asked = getattr(training, name)
        if enabled != "auto" and asked is not None and bool(enabled) != asked:
            at = f"training.deepspeed.{name}.enabled"
            faults.append((at, f"contradicts training.{name}: {str(asked).lower()}", "write auto"))
    zero = config.get("zero_optimization", {})
    stage = zero.get("stage", 0) if isinstance(zero, dict) else None
    if stage != "auto" and (isinstance(stage, bool) or stage not in {0, 1, 2, 3}):
        faults.append(("training.deepspeed.zero_optimization", "must have a stage from 0 to 3", "write stage: 2"))
    return faults
