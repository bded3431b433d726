"""A workflow of several tasks in the terminal: its stages in order, and what each of them waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import err, out, say, status_text, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.tasks import failure_causes
from tunefleet.cli.tasks.stage_order import in_order, telling
from tunefleet.cli.tasks.task_commands import progress_text, run_time
from tunefleet.client import Client
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.schemas.api import TaskView, WorkflowDetail, WorkflowView

_AT_WORK = frozenset({TaskStatus.DISPATCHED, TaskStatus.RUNNING})
_IN_SUMMARY = (
    TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.SKIPPED, TaskStatus.RUNNING,
    TaskStatus.PAUSED, TaskStatus.DISPATCHED, TaskStatus.QUEUED, TaskStatus.PENDING,
)  # fmt: skip
_NOBODY: Mapping[str, str] = {}
_OTHER_ROWS = 12
"""Of the screen of a workflow: its head, what failed, and what to do."""
_LEAST_ROWS = 5
DELIVERING = "delivering: "
"""How the note of a task begins that is computed, and whose results are not where they belong."""
_CODES = {"failed": ExitCode.FAILED, "cancelled": ExitCode.CANCELLED}


def exit_code(workflow: WorkflowView | None) -> ExitCode:
    """Return the exit code of a command that waited for a workflow; `None` stands for Ctrl-C."""
    return ExitCode.INTERRUPTED if workflow is None else _CODES.get(workflow.status, ExitCode.OK)


def stage_table(
    tasks: Sequence[TaskView],
    *,
    marked: str | None = None,
    told: Mapping[str, str] = _NOBODY,
    room: int | None = None,
) -> RenderableType:
    """Return a table of a workflow's tasks; columns that would be empty are left out.

    Args:
        told: Where something is told of a task beside the table: its id → what the note says of that.
    """
    ordered = in_order(tasks) if room is None else telling(in_order(tasks), room)
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
        "time": [run_time(task) for task in ordered],
        "note": [Text(told[task.id]) if task.id in told else why.note(task) for task in ordered],
    }
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    listing = table(*filled, right=("time",), wide="note")
    for cells in zip(*filled.values(), strict=True):
        listing.add_row(*cells)
    return listing


def _where(task: TaskView, on: set[str] | None) -> Text:
    """Return who has or had a task; of one that is spread over parts, how many."""
    return Text(formatting.plural(len(on), "worker"), style="dim") if on else Text(task.worker_id or "")


def screen(workflow: WorkflowView, *, height: int | None = None) -> RenderableType:
    """Return the whole screen for a workflow."""
    count, room = len(workflow.tasks), None
    if height is not None and workflow.status == "running" and count > height - _OTHER_ROWS:
        room = max(_LEAST_ROWS, height - _OTHER_ROWS)
    failed = failure_causes.first_failure(workflow.tasks)
    # What is in the way of a delivery is somebody's to mend, and longer than a column.
    held = [task for task in in_order(workflow.tasks) if (task.why or "").startswith(DELIVERING)]
    told = {task.id: "see below" for task in (*held, failed) if task is not None}
    parts: list[RenderableType] = [
        Text.assemble((workflow.name, "head"), "  ", (workflow.id, "id"), "  ", status_text(workflow.status)),
        Text(_summary(workflow), style="dim"),
        Text(),
        stage_table(workflow.tasks, told=told, room=room),
    ]
    if room is not None and count > room:
        parts.append(
            Text(f"And {formatting.plural(count - room, 'task')} more: tunefleet show {workflow.id}", style="dim")
        )
    for task in held[:room]:
        parts += [Text(), Text.assemble((task.name, "head"), " is computed, and delivers:")]
        parts.append(Padding(Text((task.why or "").removeprefix(DELIVERING)), (0, 0, 0, 2)))
    if failed is not None:
        where = f" on {failed.worker_id}" if failed.worker_id else ""
        parts += [Text(), Text.assemble((failed.name, "head"), f" failed{where}:")]
        parts.append(Padding(Text(failed.error or "It did not say why.", style="bad"), (0, 0, 0, 2)))
    parts += [Text(), Text(_next(workflow, failed), style="dim")]
    return Group(*parts)


def _summary(workflow: WorkflowView) -> str:
    """Return how many tasks are how far, and how long it took or has taken; parts are counted with their whole."""
    statuses = [task.status for task in workflow.tasks if task.shard_of is None]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in _IN_SUMMARY if status in statuses)
    ends = [task.finished_at for task in workflow.tasks if task.finished_at is not None]
    if not ends or len(ends) < len(workflow.tasks):
        return f"{counts}; {formatting.duration((datetime.now(UTC) - workflow.created_at).total_seconds())} so far"
    again = sum(max(0, task.attempts - 1) for task in workflow.tasks)
    retried = f" with {formatting.plural(again, 'further attempt')}" if again else ""
    return f"{counts}; it took {formatting.duration((max(ends) - workflow.created_at).total_seconds())}{retried}"


def _next(workflow: WorkflowView, failed: TaskView | None) -> str:
    if workflow.status == "running":
        return f"Follow: tunefleet follow {workflow.id}   End: tunefleet cancel {workflow.id}"
    if workflow.retried_as is not None:
        newer = workflow.retried_as
        left = newer.status in {"failed", "cancelled"}
        told = f"Retried as {newer.id} ({newer.status}).   See: tunefleet show {newer.id}"
        return f"{told}   Run what is left: tunefleet retry {newer.id}" if left else told
    if failed is not None:
        return f"See: tunefleet show {failed.id}   {run_left(failed, workflow.id)}"
    if workflow.status == "cancelled":
        return f"Run what is left: tunefleet retry {workflow.id}"
    # What came out of the workflow is with the last one that ran; a part has only its part of it.
    whole = [task for task in in_order(workflow.tasks) if task.shard_of is None]
    ran = [task for task in whole if task.status == TaskStatus.COMPLETED]
    return f"See: tunefleet show {(ran or whole)[-1].id}"


def run_left(failed: TaskView, workflow_id: str) -> str:
    """Return how to go on after a failure; what was wrong in the document stays so until it is changed."""
    change = " --set FIELD=VALUE" if failed.reason == TaskReason.BAD_INPUT else ""
    left = f"Run what is left: tunefleet retry {workflow_id}{change}"
    if failed.reason == TaskReason.DELIVERY_FAILED:
        return f"Send its result: tunefleet artifacts deliver {failed.id}   {left}"
    return left


def follow(client: Client, workflow_id: str) -> WorkflowDetail | None:
    """Show a workflow until it has ended, and return it; at Ctrl-C say how to see it again, and return `None`."""
    try:
        return _on_screen(client, workflow_id) if out().is_terminal else _in_lines(client, workflow_id)
    except KeyboardInterrupt:
        err().print(f"\nThe workflow goes on. See it again with `tunefleet follow {workflow_id}`,")
        err().print(f"or end it with `tunefleet cancel {workflow_id}`.")
        return None


def _on_screen(client: Client, workflow_id: str) -> WorkflowDetail:
    with Live(console=out(), auto_refresh=False, vertical_overflow="crop") as shown:
        return client.workflows.wait(
            workflow_id,
            on_update=lambda workflow: shown.update(screen(workflow, height=out().height), refresh=True),
        )


def _in_lines(client: Client, workflow_id: str) -> WorkflowDetail:
    said: dict[str, str] = {}

    def tell(workflow: WorkflowDetail) -> None:
        why = failure_causes.Causes(workflow.tasks)
        for task in in_order(workflow.tasks):
            if said.get(task.id) != task.status:
                said[task.id] = task.status
                say(line(task, why))

    return client.workflows.wait(workflow_id, on_update=tell)


def line(task: TaskView, why: failure_causes.Causes) -> str:
    """Return a task's status in one line."""
    note = why.note(task).plain.rstrip(".")
    on = f" on {task.worker_id}" if task.worker_id and task.status in _AT_WORK else ""
    return f"{task.name}: {task.status}{on}{f' ({note})' if note else ''}"
