"""Terminal view of a workflow: its stages in order, with their pending reasons and errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import err, next_block, out, say, status_text, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.tasks import failure_causes
from tunefleet.cli.tasks.stage_order import in_order, most_relevant
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
    ordered = in_order(tasks) if limit is None else most_relevant(in_order(tasks), limit)
    why = failure_causes.Causes(tasks)
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
    failed = failure_causes.first_failure(workflow.tasks)
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
        why = failure_causes.Causes(workflow.tasks)
        for task in in_order(workflow.tasks):
            # One line per change of status.
            if printed.get(task.id) != task.status:
                printed[task.id] = task.status
                say(line(task, why))

    return client.workflows.wait(workflow_id, on_update=print_changes)


def line(task: TaskView, why: failure_causes.Causes) -> str:
    """Return a task's status in one line; the error of a failed one is shown at the end of the workflow."""
    failed = task.status == TaskStatus.FAILED and why.of(task) is None
    note = "" if failed else why.note(task).plain.rstrip(".")
    on = f" on {task.worker_id}" if task.worker_id and task.status in _AT_WORK else ""
    return f"{task.name}: {task.status}{on}{f' ({note})' if note else ''}"
