"""`tunefleet show`: the details of a task or workflow on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, cut, facts, next_block, print_json, say, status_text, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import TaskOrWorkflow, connect, is_workflow
from tunefleet.cli.tasks import results, workflow_view
from tunefleet.cli.tasks.results import Row
from tunefleet.cli.tasks.task_view import PLAIN_REASONS
from tunefleet.client import Client
from tunefleet.errors import NotFoundError
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.placement import LIGHT_KINDS
from tunefleet.schemas.api import ArtifactView, CheckpointView, EventView, TaskDetail, TaskView

_TRACEBACK_LINES = 12
# Failures in code; for others, which the user can fix, the error message is enough.
_TRACEBACK_FOR = frozenset(
    {TaskReason.BUG, TaskReason.CRASHED, TaskReason.KILLED, TaskReason.OUT_OF_MEMORY, TaskReason.TIMEOUT}
)
Command = tuple[str, str]
# A reward model scores texts; it has no answers to chat with.
_SCORING = "reward"
_CHAT_ARTIFACTS = frozenset({"adapter", "model"})
_ENDED_EARLY = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})


@examples(
    "tunefleet show task-3f9a",
    "tunefleet show task-3f9a --all",
    "tunefleet show task-3f9a --json | jq .result",
    "tunefleet show wf-81c2",
)
def show(
    task: TaskOrWorkflow,
    *,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include ids, attempts and the full result of a run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the summary of a run or a workflow."""
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
        related = _related(client, detail, everything=everything)
    say(screen(detail, artifacts, others, related, everything=everything))


class Related(NamedTuple):
    """What the server knows about a task besides its row.

    Args:
        log: Whether it printed anything.
        memory: Its memory estimate.
        origin: How it relates to the task that it was made from.
    """

    log: bool = False
    checkpoints: tuple[CheckpointView, ...] = ()
    memory: str | None = None
    origin: str | None = None


_NOTHING = Related()


def _related(client: Client, task: TaskDetail, *, everything: bool) -> Related:
    final = TaskStatus(task.status).final and task.started_at is not None
    events = client.events.list(task_id=task.id, kinds=["task.message"]) if everything else []
    return Related(
        log=final and client.tasks.log(task.id, limit_bytes=1).size_bytes > 0,
        checkpoints=tuple(client.tasks.checkpoints(task.id)) if final else (),
        memory=memory_estimate(events),
        origin=_origin(client, task),
    )


def _origin(client: Client, task: TaskDetail) -> str | None:
    """Return the task that this one repeats or copies; None if there is none."""
    if task.parent_task_id is None:
        return None
    try:
        changed = client.tasks.get(task.parent_task_id).spec != task.spec
    except NotFoundError:
        return f"{task.parent_task_id} (removed)"
    return f"{'copy' if changed else 'repeat'} of {task.parent_task_id}"


def screen(
    task: TaskDetail,
    artifacts: tuple[ArtifactView, ...] = (),
    siblings: Sequence[TaskView] = (),
    related: Related = _NOTHING,
    *,
    everything: bool = False,
) -> RenderableType:
    """Return the screen for a task: its summary, or everything that is known."""
    parts: list[RenderableType] = [
        Text.assemble((task.name, "head"), "  ", (task.id, "id"), "  ", status_text(task.status), _category(task)),
        facts([*results.summary_rows(task, related.checkpoints), ("origin", related.origin)]),
    ]
    if everything:
        parts += [Text(), Text("Internals", style="head"), facts(_internals(task, siblings, related.memory))]
    if task.error:
        parts += [Text(), Text(task.error, style="bad"), *_place(task)]
    if task.detail and task.reason in _TRACEBACK_FOR:
        # The last lines of a traceback name the exception.
        tail = task.detail.rstrip().splitlines()[-_TRACEBACK_LINES:]
        parts.append(Padding(Text("\n".join(tail), style="dim"), (0, 0, 0, 2)))
    if task.attempts > 1 or everything:
        parts += [Text(), Text("Attempts", style="head"), _attempts(task)]
    if len(siblings) > 1:
        own = (task.error or task.why) and workflow_view.cause(task, siblings) is None
        notes = {each.id: "see above" for each in siblings if each.error and each.error in (task.error or "")}
        notes |= {task.id: "see above"} if own else {}
        parts += [
            Text(),
            Text("Stages", style="head"),
            workflow_view.stage_table(siblings, marked=task.id, notes=notes),
        ]
    # The summary of a training run says what its result says.
    if (everything or not results.is_training(task)) and (result := results.rows(task, whole=everything)):
        parts += [Text(), Text("Result", style="head"), facts(result)]
    if everything:
        parts += results.answers(task)
    if artifacts:
        parts += [Text(), Text("Artifacts", style="head"), artifact_table(artifacts)]
    if found := results.predictions(task, artifacts):
        parts += [Text(), Text("Predictions", style="head"), Text(found)]
    resumable = any(each.resumable for each in related.checkpoints)
    commands = _next_commands(task, artifacts, siblings, log=related.log, resumable=resumable)
    parts += [Text(), next_block(commands)]
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


def _category(task: TaskDetail) -> str:
    """Return the category of a failure, such as ` (out of memory)`."""
    failed = task.status == TaskStatus.FAILED and task.reason not in PLAIN_REASONS
    return f" ({str(task.reason).replace('_', ' ')})" if failed else ""


def _place(task: TaskDetail) -> list[Text]:
    """Return where a task failed: its worker, and its phase or step."""
    if task.status != TaskStatus.FAILED or task.worker_id is None:
        return []
    progress = task.progress
    step = f", at step {progress.step} of {progress.max_steps}" if progress and progress.max_steps else ""
    phase = f", while {progress.phase}" if progress and not step else ""
    return [Text(f"On {task.worker_id}{step or phase}.", style="dim")]


def _internals(task: TaskDetail, siblings: Sequence[TaskView], memory: str | None) -> list[Row]:
    names, of = {each.id: each.name for each in siblings}, task.shard_of or ""
    waits = task.status == TaskStatus.PENDING
    on = sorted({part.worker_id for part in siblings if part.shard_of == task.id and part.worker_id})
    return [
        ("kind", task.kind),
        ("reason", task.reason),
        ("workflow", task.workflow_id),
        ("depends on", ", ".join(names.get(id_, id_) for id_ in task.depends_on) if waits else None),
        ("shard", f"{task.shard[0] + 1} of {task.shard[1]} of {names.get(of, of)} ({of})" if task.shard else None),
        ("owner", task.owner),
        ("workers" if on else "worker", ", ".join(on) or task.worker_id),
        ("submitted", f"{task.created_at:%Y-%m-%d %H:%M:%S} UTC, {formatting.age(task.created_at)} ago"),
        ("estimated memory", memory),
    ]


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


def _next_commands(
    task: TaskDetail,
    artifacts: Sequence[ArtifactView] = (),
    siblings: Sequence[TaskView] = (),
    *,
    log: bool = False,
    resumable: bool = False,
) -> list[Command]:
    """Return labels and commands."""
    id_ = task.id
    if task.status == TaskStatus.PAUSED:
        return [("Resume", f"tunefleet resume {id_}"), ("Checkpoints", f"tunefleet checkpoints {id_}")]
    if not TaskStatus(task.status).final:
        return _of_unfinished(task)
    origin = workflow_view.cause(task, siblings)
    if task.status == TaskStatus.SKIPPED:
        return [("Details", f"tunefleet show {origin.id if origin is not None else task.workflow_id}")]
    if origin is not None:
        return [("Details", f"tunefleet show {origin.id}"), *workflow_view.run_left(origin, task.workflow_id)]
    logged = [("Log", f"tunefleet logs {id_}")] if log else []
    if task.status in _ENDED_EARLY:
        return [*_of_failed(task, siblings, resumable=resumable), *logged]
    made = [("Download", f"tunefleet artifacts get {each.name} --run {id_}") for each in artifacts]
    if task.kind != _SCORING and isinstance(task.spec.get("training"), dict):
        chat = [("Chat", f"tunefleet chat {id_}")] if any(each.kind in _CHAT_ARTIFACTS for each in artifacts) else []
        return [*chat, *made, ("Plot", f"tunefleet metrics --plot {id_}"), *logged]
    return made or logged or [("Retry", f"tunefleet retry {id_}")]


def _of_unfinished(task: TaskDetail) -> list[Command]:
    id_ = task.id
    if task.started_at is None or (task.why or "").startswith(workflow_view.DELIVERING):
        return [("Explain", f"tunefleet why {id_}"), ("Cancel", f"tunefleet cancel {id_}")]
    follow = [("Follow", f"tunefleet follow {id_}")]
    if task.kind in LIGHT_KINDS:
        return follow
    return [*follow, ("Log", f"tunefleet logs -f {id_}"), ("Plot", f"tunefleet metrics --plot {id_}")]


def _of_failed(task: TaskDetail, siblings: Sequence[TaskView], *, resumable: bool) -> list[Command]:
    if task.reason == TaskReason.BAD_INPUT:
        # The same input fails again.
        if len(siblings) > 1:
            return workflow_view.run_left(task, task.workflow_id)
        return [("Change and retry", f"tunefleet clone {task.id} --set FIELD=VALUE")]
    resume = [("Resume from the last checkpoint", f"tunefleet resume {task.id}")] if resumable else []
    return [*resume, ("Retry", f"tunefleet retry {task.id}")]
