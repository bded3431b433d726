"""Changes for the relaunch of a failed job: a smaller batch, or a lower learning rate.

A relaunch keeps the attempt and its token. It is decided after all processes of the job are gone, from the job folder
and the end only, so that it does not matter how the process died. The changes are written to `overrides.json` before
the launch, and applied by the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec import ModelTrainingSpec, load_task_spec
from tunefleet.trainer_control.files import read_json, write_json

# How often a diverged training restarts with half the learning rate before it fails.
ROLLBACKS: Final = 3


def plan(folder: JobFolder, spec: Mapping[str, Any], reason: TaskReason, launch: str) -> str | None:
    """Write the changes for a relaunch, if one may succeed.

    Returns:
        A message about the changes; None if the end is final.

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
        # A restart after the write must not halve the batch twice.
        return "The changes for the relaunch are already written."
    if reason is TaskReason.OUT_OF_MEMORY:
        changes, message = _smaller(task, now)
    else:
        changes, message = _slower(task, now)
    if changes:
        write_json(folder.overrides_json, {**now, **changes, "after": launch}, sync=True)
    return message if changes else None


def halved(batch: int, accumulation: int, least: int = 1) -> tuple[int, int] | None:
    """Return at most half the batch size, and more accumulation for the same product; None if it is too small."""
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
    message = f"Out of memory with batch size {batch}: continuing with {sizes[0]} and {sizes[1]} accumulation steps."
    return changes, message


def _slower(task: ModelTrainingSpec, now: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    done = int(now.get("rollbacks") or 0)
    if task.on_nan != "rollback" or done >= ROLLBACKS:
        return {}, ""
    rate = float(now.get("learning_rate") or task.training.learning_rate) / 2
    message = f"The training diverged: resuming from its last good checkpoint with learning rate {rate:g}."
    return {"learning_rate": rate, "rollbacks": done + 1}, message
