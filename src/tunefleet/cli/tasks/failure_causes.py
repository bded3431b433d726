"""Why tasks of a workflow did not complete: which of them failed by itself, and which for another's sake."""

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
    """Return the task that failed first by itself; of one that was spread over parts, the part."""
    of_parts = {task.shard_of for task in tasks if task.status == TaskStatus.FAILED}
    failed = [task for task in tasks if task.status == TaskStatus.FAILED and task.id not in of_parts]
    own = [task for task in failed if task.reason not in FOLLOWED]
    return min(own or failed, key=lambda task: task.finished_at or task.created_at, default=None)


class Causes:
    """Why the tasks of a workflow ended as they did; each is looked at once, however long their chains are."""

    def __init__(self, tasks: Sequence[TaskView]) -> None:
        self._here = {task.id: task for task in tasks}
        self._roots: dict[str, TaskView | None] = {}

    def of(self, task: TaskView) -> TaskView | None:
        """Return the task before this one, however far, that brought its end about by its own; None if none did."""
        way: list[str] = []
        at: TaskView | None = task
        while at is not None and at.reason in FOLLOWED:
            if at.id in self._roots:
                at = self._roots[at.id]
                break
            way.append(at.id)
            at = self._above(at)  # None: it belongs to another workflow
        self._roots.update(dict.fromkeys(way, at))
        return None if at is task else at

    def _above(self, task: TaskView) -> TaskView | None:
        above = (self._here[id_] for id_ in task.depends_on if id_ in self._here)
        return next((each for each in above if TaskStatus(each.status) in _DID), None)

    def note(self, task: TaskView) -> Text:
        """Return what there is to say of a task beside its status: what it waits for, or why it did not complete."""
        if task.why:
            return cut(task.why, "dim")
        origin = self.of(task)
        if origin is not None:
            return cut(f"because {origin.name} {_DID[TaskStatus(origin.status)]}", "dim")
        return cut(task.error or "", "bad" if task.status == TaskStatus.FAILED else "dim")


def cause(task: TaskView, tasks: Sequence[TaskView]) -> TaskView | None:
    """Return what `Causes` says of one task among all of its workflow."""
    return Causes(tasks).of(task)
