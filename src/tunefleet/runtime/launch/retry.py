"""What the next launch of a job does otherwise than the one that failed: a smaller batch, a lower learning rate.

A second try keeps its attempt and its token. It is decided when nothing of the job lives any more, from the job folder
and the end alone, so that it does not matter how the process died. The change goes to `overrides.json` before the
launch; the program applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec import ModelTrainingSpec, load_task_spec
from tunefleet.trainer_control.files import read_json, write_json

# How often a training goes back with half the learning rate before its divergence is final.
ROLLBACKS: Final = 3


def plan(folder: JobFolder, spec: Mapping[str, Any], reason: TaskReason, launch: str) -> str | None:
    """Change what the next launch does, if that is worth a try.

    Returns:
        One sentence that says what was changed; None if the end is final.

    Raises:
        OSError: If the change cannot be written.
    """
    if reason not in (TaskReason.OUT_OF_MEMORY, TaskReason.DIVERGED):
        return None
    task = load_task_spec(spec)
    if not isinstance(task, ModelTrainingSpec):
        return None
    now = read_json(folder.overrides_json) or {}
    if now.get("after") == launch:
        return "The change for the next launch is written already."
    if reason is TaskReason.OUT_OF_MEMORY:
        changes, sentence = _smaller(task, now)
    else:
        changes, sentence = _slower(task, now)
    if changes:
        write_json(folder.overrides_json, {**now, **changes, "after": launch}, sync=True)
    return sentence if changes else None


def halved(batch: int, accumulation: int, least: int = 1) -> tuple[int, int] | None:
    """Return at most half the batch and so much accumulation that their product stays; None if it has too few rows."""
    rows = batch * accumulation
    smaller = next((size for size in range(batch // 2, least - 1, -1) if rows % size == 0), None)
    return None if smaller is None else (smaller, rows // smaller)


def _smaller(task: ModelTrainingSpec, now: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    training = task.training
    batch = int(now.get("batch_size") or training.batch_size)
    accumulation = int(now.get("gradient_accumulation_steps") or training.gradient_accumulation_steps)
    sizes = halved(batch, accumulation, task.smallest_batch) if task.on_oom == "halve_batch" else None
    if sizes is None:
        return {}, ""
    changes = dict(zip(("batch_size", "gradient_accumulation_steps"), sizes, strict=True))
    return changes, f"The memory did not suffice for batches of {batch}: going on with {sizes[0]}, {sizes[1]} a step."


def _slower(task: ModelTrainingSpec, now: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    done = int(now.get("rollbacks") or 0)
    if task.on_nan != "rollback" or done >= ROLLBACKS:
        return {}, ""
    rate = float(now.get("learning_rate") or task.training.learning_rate) / 2
    sentence = f"The training diverged: going back to its last good checkpoint with a learning rate of {rate:g}."
    return {"learning_rate": rate, "rollbacks": done + 1}, sentence
