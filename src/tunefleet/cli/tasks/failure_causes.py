"""Root causes of a failed workflow: which tasks failed themselves, and which because of an upstream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from tunefleet.cli.console import cut
from tunefleet.cli.tasks.stage_order import FOLLOWED
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import TaskView

_DID: Final = {
    TaskStatus.FAILED: "failed",
    TaskStatus.CANCELLED: "was cancelled",
    TaskStatus.SKIPPED: "was skipped",
}


def first_failure(tasks: Sequence[TaskView]) -> TaskView | None:
    """Return the first task that failed itself; of a sharded task, the shard."""
    # A sharded task fails because of a shard, which has the error.
    sharded = {task.shard_of for task in tasks if task.status == TaskStatus.FAILED}
    failed = [task for task in tasks if task.status == TaskStatus.FAILED and task.id not in sharded]
    # All others failed because of an upstream.
    own = [task for task in failed if task.reason not in FOLLOWED]
    return min(own or failed, key=lambda task: task.finished_at or task.created_at, default=None)


class Causes:
    """Root causes of all tasks of a workflow; memoized, so that long chains stay linear."""

    def __init__(self, tasks: Sequence[TaskView]) -> None:
        self._tasks = {task.id: task for task in tasks}
        self._roots: dict[str, TaskView | None] = {}

    def of(self, task: TaskView) -> TaskView | None:
        """Return the upstream, direct or not, whose own failure ended this task; None if there is none."""
        chain: list[str] = []
        at: TaskView | None = task
        while at is not None and at.reason in FOLLOWED:
            if at.id in self._roots:
                at = self._roots[at.id]
                break
            chain.append(at.id)
            at = self._above(at)  # None: the upstream belongs to another workflow
        self._roots.update(dict.fromkeys(chain, at))
        return None if at is task else at

    def _above(self, task: TaskView) -> TaskView | None:
        above = (self._tasks[id_] for id_ in task.depends_on if id_ in self._tasks)
        return next((each for each in above if TaskStatus(each.status) in _DID), None)

    def note(self, task: TaskView) -> Text:
        """Return the note for a task's status: its pending reason, or why it did not complete."""
        if task.why:
            return cut(task.why, "dim")
        origin = self.of(task)
        if origin is not None:
            return cut(f"because {origin.name} {_DID[TaskStatus(origin.status)]}", "dim")
        return cut(task.error or "", "bad" if task.status == TaskStatus.FAILED else "dim")


def cause(task: TaskView, tasks: Sequence[TaskView]) -> TaskView | None:
    """Return the root cause of one task, given all tasks of its workflow."""
    return Causes(tasks).of(task)
