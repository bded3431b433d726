"""Terminal view of a workflow: its stages in order, with their pending reasons and errors."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import cut, err, next_block, out, say, status_text, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.tasks.task_commands import progress_text, run_time
from tunefleet.client import Client
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.schemas.api import TaskView, WorkflowDetail, WorkflowView

_AT_WORK = frozenset({TaskStatus.DISPATCHED, TaskStatus.RUNNING})
_IN_SUMMARY = (
    TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.SKIPPED, TaskStatus.RUNNING,
    TaskStatus.PAUSED, TaskStatus.DISPATCHED, TaskStatus.QUEUED, TaskStatus.PENDING,
)  # fmt: skip
_NO_NOTES: Mapping[str, str] = {}
# Rows of the screen besides the table: head, error, next commands.
_OTHER_ROWS = 12
_LEAST_ROWS = 5
# Prefix of the server's note on a task that has run and is still delivering its results.
DELIVERING = "delivering: "
_CODES = {"failed": ExitCode.FAILED, "cancelled": ExitCode.CANCELLED}
# The task ended because of an upstream.
FOLLOWED: Final = frozenset({TaskReason.UPSTREAM_FAILED, TaskReason.UPSTREAM_CANCELLED, TaskReason.UPSTREAM_SKIPPED})
_ACTIVE: Final = frozenset({TaskStatus.DISPATCHED, TaskStatus.RUNNING, TaskStatus.PAUSED})
_PENDING: Final = frozenset({TaskStatus.QUEUED, TaskStatus.PENDING})
_DID: Final = {
    TaskStatus.FAILED: "failed",
    TaskStatus.CANCELLED: "was cancelled",
    TaskStatus.SKIPPED: "was skipped",
}


def exit_code(workflow: WorkflowView | None) -> ExitCode:
    """Return the exit code of a command that waited for a workflow; `None` means Ctrl-C."""
    return ExitCode.INTERRUPTED if workflow is None else _CODES.get(workflow.status, ExitCode.OK)


def stage_table(
    tasks: Sequence[TaskView],
    *,
    marked: str | None = None,
    notes: Mapping[str, str] = _NO_NOTES,
    limit: int | None = None,
) -> RenderableType:
    """Return a table of a workflow's tasks; columns that would be empty are left out.

    Args:
        notes: Task id → a note that replaces the usual one.
    """
    ordered = in_order(tasks) if limit is None else _most_relevant(in_order(tasks), limit)
    why = Causes(tasks)
    on: dict[str | None, set[str]] = defaultdict(set)
    for part in tasks:
        if part.worker_id:
            on[part.shard_of].add(part.worker_id)
    columns: dict[str, list[RenderableType]] = {
        "stage": [
            Text(f"  {task.name}" if task.shard_of else task.name, style="head" if task.id == marked else "")
            for task in ordered
        ],
        "task": [Text(task.id, style="id") for task in ordered],
        "status": [status_text(task.status) for task in ordered],
        "worker": [_where(task, on.get(task.id)) for task in ordered],
        "progress": [progress_text(task) for task in ordered],
        "duration": [run_time(task) for task in ordered],
        "note": [Text(notes[task.id]) if task.id in notes else why.note(task) for task in ordered],
    }
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    listing = table(*filled, right=("duration",), wide="note")
    for cells in zip(*filled.values(), strict=True):
        listing.add_row(*cells)
    return listing


def _where(task: TaskView, on: set[str] | None) -> Text:
    """Return the worker of a task; for a sharded task, the number of workers."""
    return Text(formatting.plural(len(on), "worker"), style="dim") if on else Text(task.worker_id or "")


def screen(workflow: WorkflowView, *, height: int | None = None) -> RenderableType:
    """Return the whole screen for a workflow."""
    count, limit = len(workflow.tasks), None
    if height is not None and workflow.status == "running" and count > height - _OTHER_ROWS:
        limit = max(_LEAST_ROWS, height - _OTHER_ROWS)
    failed = _first_failure(workflow.tasks)
    # A delivery problem needs action by the user, and is too long for a column.
    delivering = [task for task in in_order(workflow.tasks) if (task.why or "").startswith(DELIVERING)]
    notes = {task.id: "see below" for task in (*delivering, failed) if task is not None}
    parts: list[RenderableType] = [
        Text.assemble((workflow.name, "head"), "  ", (workflow.id, "id"), "  ", status_text(workflow.status)),
        Text(_summary(workflow), style="dim"),
        Text(),
        stage_table(workflow.tasks, notes=notes, limit=limit),
    ]
    if limit is not None and count > limit:
        parts.append(
            Text(f"{formatting.plural(count - limit, 'more task')}: tunefleet show {workflow.id}", style="dim")
        )
    for task in delivering[:limit]:
        parts += [Text(), Text.assemble((task.name, "head"), " has run; delivering its results:")]
        parts.append(Padding(Text((task.why or "").removeprefix(DELIVERING)), (0, 0, 0, 2)))
    if failed is not None:
        where = f" on {failed.worker_id}" if failed.worker_id else ""
        parts += [Text(), Text.assemble((failed.name, "head"), f" failed{where}:")]
        parts.append(Padding(Text(failed.error or "No reason given.", style="bad"), (0, 0, 0, 2)))
    parts += [Text(), next_block(_next(workflow, failed))]
    return Group(*parts)


def _summary(workflow: WorkflowView) -> str:
    """Return the number of tasks per status and the duration; shards count as one task."""
    statuses = [task.status for task in workflow.tasks if task.shard_of is None]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in _IN_SUMMARY if status in statuses)
    ends = [task.finished_at for task in workflow.tasks if task.finished_at is not None]
    if not ends or len(ends) < len(workflow.tasks):
        return f"{counts}; {formatting.duration((datetime.now(UTC) - workflow.created_at).total_seconds())} so far"
    again = sum(max(0, task.attempts - 1) for task in workflow.tasks)
    retried = f" with {formatting.plural(again, 'extra attempt')}" if again else ""
    return f"{counts}; took {formatting.duration((max(ends) - workflow.created_at).total_seconds())}{retried}"


def _next(workflow: WorkflowView, failed: TaskView | None) -> list[tuple[str, str]]:
    if workflow.status == "running":
        return [("Follow", f"tunefleet follow {workflow.id}"), ("Cancel", f"tunefleet cancel {workflow.id}")]
    if workflow.retried_as is not None:
        newer = workflow.retried_as
        left = newer.status in {"failed", "cancelled"}
        rest = [("Retry the rest", f"tunefleet retry {newer.id}")] if left else []
        return [(f"Retried as {newer.id} ({newer.status})", f"tunefleet show {newer.id}"), *rest]
    if failed is not None:
        return [("Details", f"tunefleet show {failed.id}"), *run_left(failed, workflow.id)]
    if workflow.status == "cancelled":
        return [("Retry the rest", f"tunefleet retry {workflow.id}")]
    # The last task that ran has the result of the workflow; a shard has only a part of it.
    unsharded = [task for task in in_order(workflow.tasks) if task.shard_of is None]
    ran = [task for task in unsharded if task.status == TaskStatus.COMPLETED]
    return [("Details", f"tunefleet show {(ran or unsharded)[-1].id}")]


def run_left(failed: TaskView, workflow_id: str) -> list[tuple[str, str]]:
    """Return the next commands after a failure; an invalid input needs a change of the workflow file."""
    change = " --set FIELD=VALUE" if failed.reason == TaskReason.BAD_INPUT else ""
    left = ("Retry the rest", f"tunefleet retry {workflow_id}{change}")
    if failed.reason == TaskReason.DELIVERY_FAILED:
        return [("Deliver the result", f"tunefleet artifacts deliver {failed.id}"), left]
    return [left]


def follow(client: Client, workflow_id: str) -> WorkflowDetail | None:
    """Show a workflow until it ends, and return it; on Ctrl-C print how to follow it, and return `None`."""
    try:
        return _on_screen(client, workflow_id) if out().is_terminal else _in_lines(client, workflow_id)
    except KeyboardInterrupt:
        err().print(f"\nThe workflow keeps running. Follow it again with `tunefleet follow {workflow_id}`,")
        err().print(f"or cancel it with `tunefleet cancel {workflow_id}`.")
        return None


def _on_screen(client: Client, workflow_id: str) -> WorkflowDetail:
    with Live(console=out(), auto_refresh=False, vertical_overflow="crop") as shown:
        return client.workflows.wait(
            workflow_id,
            on_update=lambda workflow: shown.update(screen(workflow, height=out().height), refresh=True),
        )


def _in_lines(client: Client, workflow_id: str) -> WorkflowDetail:
    printed: dict[str, str] = {}

    def print_changes(workflow: WorkflowDetail) -> None:
        why = Causes(workflow.tasks)
        for task in in_order(workflow.tasks):
            # One line per change of status.
            if printed.get(task.id) != task.status:
                printed[task.id] = task.status
                say(line(task, why))

    return client.workflows.wait(workflow_id, on_update=print_changes)


def line(task: TaskView, why: Causes) -> str:
    """Return a task's status in one line; the error of a failed one is shown at the end of the workflow."""
    failed = task.status == TaskStatus.FAILED and why.of(task) is None
    note = "" if failed else why.note(task).plain.rstrip(".")
    on = f" on {task.worker_id}" if task.worker_id and task.status in _AT_WORK else ""
    return f"{task.name}: {task.status}{on}{f' ({note})' if note else ''}"


def in_order(tasks: Sequence[TaskView]) -> list[TaskView]:
    """Return tasks in topological order, shards after their parent; otherwise the order is kept."""
    position = {task.id: at for at, task in enumerate(tasks)}
    # The server lists shards last; here each follows its parent.
    parent_of = {task.id: task.shard_of for task in tasks if task.shard_of in position}
    shards, below = defaultdict(list), defaultdict(list)
    missing: dict[str, int] = {}
    for task in tasks:
        parent = parent_of.get(task.id)
        if parent is not None:
            shards[parent].append(task)
            continue
        above = {parent_of.get(id_) or id_ for id_ in task.depends_on if id_ in position} - {task.id}
        missing[task.id] = len(above)
        for id_ in above:
            below[id_].append(task.id)
    # A heap of positions: among the ready tasks the order of the workflow is kept.
    ready = [position[id_] for id_, count in missing.items() if count == 0]
    found: list[TaskView] = []
    while ready:
        first = tasks[heapq.heappop(ready)]
        found += [first, *shards[first.id]]
        for id_ in below[first.id]:
            missing[id_] -= 1
            if missing[id_] == 0:
                heapq.heappush(ready, position[id_])
    if len(found) < len(tasks):  # a cycle, which validation rejects
        known = {task.id for task in found}
        found += [task for task in tasks if task.id not in known]
    return found


def _most_relevant(tasks: Sequence[TaskView], limit: int) -> list[TaskView]:
    """Return the most relevant of ordered tasks, in the same order: active or failed, then pending, then ended."""
    best = heapq.nsmallest(limit, enumerate(tasks), key=lambda each: (_rank(each[1]), each[0]))
    return [task for _, task in sorted(best, key=lambda each: each[0])]


def _rank(task: TaskView) -> int:
    if task.status in _ACTIVE or (task.status == TaskStatus.FAILED and task.reason not in FOLLOWED):
        return 0
    return 1 if task.status in _PENDING else 2


def _first_failure(tasks: Sequence[TaskView]) -> TaskView | None:
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
