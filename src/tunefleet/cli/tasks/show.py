"""`tunefleet show`: the details of a task or workflow on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, cut, facts, print_json, say, status_text, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import TaskOrWorkflow, connect, is_workflow
from tunefleet.cli.tasks import failure_causes, results, workflow_view
from tunefleet.cli.tasks.task_commands import progress_text, run_time
from tunefleet.cli.tasks.watch_loop import PLAIN_REASONS
from tunefleet.client import Client
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.placement import LIGHT_KINDS
from tunefleet.schemas.api import ArtifactView, EventView, TaskDetail, TaskView

_TRACEBACK_LINES = 12
# Failures in code; for others, which the user can fix, the error message is enough.
_TRACEBACK_FOR = frozenset(
    {TaskReason.BUG, TaskReason.CRASHED, TaskReason.KILLED, TaskReason.OUT_OF_MEMORY, TaskReason.TIMEOUT}
)


@examples("tunefleet show task-3f9a", "tunefleet show task-3f9a --json | jq .result", "tunefleet show wf-81c2")
def show(task: TaskOrWorkflow, *, as_json: Json = False) -> None:
    """Show the details of a task or a workflow."""
    with connect() as client:
        if is_workflow(task):
            workflow = client.workflows.get(task)
            if as_json:
                print_json(workflow)
            else:
                say(workflow_view.screen(workflow))
            return
        detail = client.tasks.get(task)
        if as_json:
            print_json(detail)
            return
        # The causes of a failure are among the other tasks of the workflow.
        others = client.workflows.get(detail.workflow_id).tasks
        artifacts = client.artifacts.list(task_id=detail.id).items
        needed = memory_estimate(client.events.list(task_id=detail.id, kinds=["task.message"]))
        left = _leftovers(client, detail)
    say(screen(detail, artifacts, needed, others, left))


class Leftovers(NamedTuple):
    """What an ended task left besides its result; decides which next commands are suggested."""

    log: bool = False
    checkpoint: bool = False


_NOTHING = Leftovers()


def _leftovers(client: Client, task: TaskDetail) -> Leftovers:
    if not TaskStatus(task.status).final or task.started_at is None:
        return Leftovers()
    # Only then `resume` continues from the last checkpoint.
    ended_early = task.status in {TaskStatus.FAILED, TaskStatus.CANCELLED}
    return Leftovers(
        log=client.tasks.log(task.id, limit_bytes=1).size_bytes > 0,
        checkpoint=ended_early and any(each.resumable for each in client.tasks.checkpoints(task.id)),
    )


def screen(
    task: TaskDetail,
    artifacts: tuple[ArtifactView, ...] = (),
    memory: str | None = None,
    siblings: Sequence[TaskView] = (),
    left: Leftovers = _NOTHING,
) -> RenderableType:
    """Return the whole screen for a task."""
    parts: list[RenderableType] = [
        Text.assemble((task.name, "head"), "  ", (task.id, "id"), "  ", status_text(task.status)),
        facts([*_facts(task, siblings), ("memory", memory)]),
    ]
    if task.error:
        parts += [Text(), Text(task.error, style="bad")]
    if task.detail and task.reason in _TRACEBACK_FOR:
        # The last lines of a traceback name the exception.
        tail = task.detail.rstrip().splitlines()[-_TRACEBACK_LINES:]
        parts.append(Padding(Text("\n".join(tail), style="dim"), (0, 0, 0, 2)))
    if task.attempts > 1:
        parts += [Text(), Text("Attempts", style="head"), _attempts(task)]
    if len(siblings) > 1:
        own = (task.error or task.why) and failure_causes.cause(task, siblings) is None
        notes = {task.id: "see above"} if own else {}
        parts += [
            Text(),
            Text("Stages", style="head"),
            workflow_view.stage_table(siblings, marked=task.id, notes=notes),
        ]
    if result := results.rows(task):
        parts += [Text(), Text("Result", style="head"), facts(result)]
    if artifacts:
        parts += [Text(), Text("Artifacts", style="head"), artifact_table(artifacts)]
    parts += [Text(), Text(_next(task, artifacts, siblings, left), style="dim")]
    return Group(*parts)


def memory_estimate(events: Sequence[EventView]) -> str | None:
    """Return the newest memory estimate among a task's events as text; None if there is none."""
    found = [event.data.get("data") for event in events if event.data.get("name") == "memory.estimate"]
    figures = found[-1] if found else None
    if not isinstance(figures, dict) or not isinstance(figures.get("total_bytes"), int):
        return None
    parts = ("weights", "gradients", "optimizer", "activations", "logits")
    known = [(part, figures.get(f"{part}_bytes")) for part in parts]
    listed = ", ".join(f"{part} {formatting.size(count)}" for part, count in known if isinstance(count, int) and count)
    free = figures.get("available_bytes")
    there = f" of {formatting.size(free)} free on the {figures.get('device')}" if isinstance(free, int) else ""
    return f"about {formatting.size(figures['total_bytes'])}{there} ({listed})"


def _facts(task: TaskDetail, siblings: Sequence[TaskView]) -> list[tuple[str, RenderableType | None]]:
    progress = task.progress
    running = progress is not None and not TaskStatus(task.status).final
    names, of = {each.id: each.name for each in siblings}, task.shard_of or ""
    waits = task.status == TaskStatus.PENDING
    on = sorted({part.worker_id for part in siblings if part.shard_of == task.id and part.worker_id})
    return [
        ("kind", task.kind),
        ("model", _at(task.spec, "model", "source", "identifier")),
        ("pending reason", task.why),
        ("stalled since", f"{task.stalled_since:%Y-%m-%d %H:%M:%S} UTC" if task.stalled_since else None),
        ("reason", None if task.reason in PLAIN_REASONS else task.reason),
        ("workflow", task.workflow_id),
        ("depends on", ", ".join(names.get(id_, id_) for id_ in task.depends_on) if waits else None),
        ("shard", f"{task.shard[0] + 1} of {task.shard[1]} of {names.get(of, of)} ({of})" if task.shard else None),
        ("retry of", task.parent_task_id),
        ("owner", task.owner),
        ("workers" if on else "worker", ", ".join(on) or task.worker_id),
        ("submitted", f"{task.created_at:%Y-%m-%d %H:%M:%S} UTC, {formatting.age(task.created_at)} ago"),
        ("duration", _run_time(task)),
        ("progress", f"{progress.phase} {progress_text(task)}" if running and progress else None),
        ("step time", formatting.step_time(progress.step_time_s) if running and progress else None),
        ("time left", formatting.duration(progress.eta_s) if running and progress and progress.eta_s else None),
    ]


def _run_time(task: TaskDetail) -> str | None:
    time = run_time(task)
    return time + (f", in {task.attempts} attempts" if task.attempts > 1 else "") if time else None


def _at(tree: object, *keys: str) -> str | None:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return str(tree) if tree is not None else None


def _attempts(task: TaskDetail) -> RenderableType:
    listing = table("#", "worker", "state", "reason", "error", right=("#",), wide="error")
    before = task.error
    for attempt in task.attempt_list:
        # A repeated error is shown once.
        error = ("same error" if attempt.error == before else attempt.error) if attempt.error else ""
        before = attempt.error or before
        where = " ".join(node.worker_id for node in attempt.nodes) or attempt.worker_id
        listing.add_row(str(attempt.number), where, attempt.state, attempt.reason or "", cut(error))
    return listing


def artifact_table(artifacts: tuple[ArtifactView, ...]) -> RenderableType:
    """Return a table of artifacts."""
    listing = table("name", "kind", "files", "size", "age", "id", right=("files", "size", "age"))
    for made in artifacts:
        listing.add_row(
            made.name,
            made.kind,
            str(made.file_count),
            formatting.size(made.size_bytes),
            formatting.age(made.created_at),
            Text(made.id, style="id"),
        )
    return listing


def _next(task: TaskDetail, artifacts: tuple[ArtifactView, ...], siblings: Sequence[TaskView], left: Leftovers) -> str:
    if task.status == TaskStatus.PAUSED:
        return f"Resume: tunefleet resume {task.id}   Checkpoints: tunefleet checkpoints {task.id}"
    if not TaskStatus(task.status).final:
        if task.started_at is None or (task.why or "").startswith(workflow_view.DELIVERING):
            return f"Explain: tunefleet why {task.id}   Cancel: tunefleet cancel {task.id}"
        if task.kind in LIGHT_KINDS:
            return f"Follow: tunefleet follow {task.id}"
        return f"Follow: tunefleet logs -f {task.id}   Plot: tunefleet metrics --plot {task.id}"
    origin = failure_causes.cause(task, siblings)
    if task.status == TaskStatus.SKIPPED:
        return f"Details: tunefleet show {origin.id if origin is not None else task.workflow_id}"
    if origin is not None:
        return f"Details: tunefleet show {origin.id}   {workflow_view.run_left(origin, task.workflow_id)}"
    if task.reason == TaskReason.BAD_INPUT and len(siblings) > 1:
        return workflow_view.run_left(task, task.workflow_id)
    return _next_of_own(task, artifacts, left)


def _next_of_own(task: TaskDetail, artifacts: tuple[ArtifactView, ...], left: Leftovers) -> str:
    log = [f"Log: tunefleet logs {task.id}"] if left.log else []
    if task.status != TaskStatus.COMPLETED:
        on = [f"Resume from the last checkpoint: tunefleet resume {task.id}"] if left.checkpoint else []
        return "   ".join([*log, f"Retry: tunefleet retry {task.id}", *on])
    if artifacts:
        return f"Download: tunefleet artifacts get {artifacts[0].id}"
    return (log or [f"Retry: tunefleet retry {task.id}"])[0]
