"""A workflow of several tasks in the terminal: its stages in order, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tunefleet.cli import words
from tunefleet.cli.console import cut, err, out, say, status_text, table
from tunefleet.cli.exitcodes import ExitCode
from tunefleet.cli.tasks import progress_text, run_time_s
from tunefleet.client import Client
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.wire.api import TaskView, WorkflowDetail, WorkflowView

_CODES = {"failed": ExitCode.FAILED, "cancelled": ExitCode.CANCELLED}


def exit_code(workflow: WorkflowView | None) -> ExitCode:
    """Return the exit code of a command that waited for a workflow; `None` stands for Ctrl-C."""
    return ExitCode.INTERRUPTED if workflow is None else _CODES.get(workflow.status, ExitCode.OK)


def in_order(tasks: Sequence[TaskView]) -> list[TaskView]:
    """Return tasks as they run: each behind those that it waits for, parts behind their whole, else as they stand."""
    here = {task.id for task in tasks}
    placed: set[str] = set()
    found: list[TaskView] = []
    rest = list(tasks)
    while rest:
        ready = [task for task in rest if not _before(task, here) - placed]
        first = (ready or rest)[0]
        rest.remove(first)
        placed.add(first.id)
        found.append(first)
        # Parts are stored behind everything else, and belong to their whole.
        parts = [task for task in rest if task.shard_of == first.id]
        found += parts
        placed |= {task.id for task in parts}
        rest = [task for task in rest if task.shard_of != first.id]
    return found


def _before(task: TaskView, here: set[str]) -> set[str]:
    above = {*task.depends_on, *([task.shard_of] if task.shard_of else [])}
    return above & here


def stage_table(tasks: Sequence[TaskView]) -> RenderableType:
    """Return a table of a workflow's tasks."""
    listing = table("stage", "task", "status", "progress", "time", "note", right=("time",), wide="note")
    for task in in_order(tasks):
        listing.add_row(
            f"  {task.name}" if task.shard_of else task.name,
            Text(task.id, style="id"),
            status_text(task.status),
            progress_text(task),
            words.duration(run_time_s(task)) if task.started_at else "",
            cut(task.why, "dim") if task.why else cut(task.error or "", "bad"),
        )
    return listing


def screen(workflow: WorkflowView) -> RenderableType:
    """Return the whole screen for a workflow."""
    head = Text.assemble((workflow.name, "head"), "  ", (workflow.id, "id"), "  ", status_text(workflow.status))
    return Group(head, Text(), stage_table(workflow.tasks), Text(), Text(_next(workflow), style="dim"))


def _next(workflow: WorkflowView) -> str:
    if workflow.status == "running":
        return f"Follow: tunefleet follow {workflow.id}   End: tunefleet cancel {workflow.id}"
    failed = next((t for t in in_order(workflow.tasks) if t.status == TaskStatus.FAILED), None)
    if failed is not None:
        return f"See: tunefleet show {failed.id}   Run what is left: tunefleet retry {workflow.id}"
    return f"See: tunefleet show {workflow.tasks[-1].id}"


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
            workflow_id, on_update=lambda workflow: shown.update(screen(workflow), refresh=True)
        )


def _in_lines(client: Client, workflow_id: str) -> WorkflowDetail:
    said: dict[str, str] = {}

    def tell(workflow: WorkflowDetail) -> None:
        for task in in_order(workflow.tasks):
            if said.get(task.id) != task.status:
                said[task.id] = task.status
                say(line(task))

    return client.workflows.wait(workflow_id, on_update=tell)


def line(task: TaskView) -> str:
    """Return a task's status in one line."""
    note = task.why or task.error
    return f"{task.name}: {task.status}{f' ({note})' if note else ''}"
