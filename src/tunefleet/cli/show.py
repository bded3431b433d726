"""`tunefleet show`: all that is known of a task on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tunefleet.cli import stages, words
from tunefleet.cli.console import Json, cut, facts, print_json, say, status_text, table
from tunefleet.cli.lazy import examples
from tunefleet.cli.options import TaskOrWorkflow, is_workflow
from tunefleet.cli.session import connect
from tunefleet.cli.tasks import progress_text, run_time_s
from tunefleet.cli.watch import PLAIN_REASONS
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.wire.api import ArtifactView, EventView, TaskDetail, TaskView

_TRACEBACK_LINES = 12
_TRACEBACK_FOR = frozenset(
    {TaskReason.BUG, TaskReason.CRASHED, TaskReason.KILLED, TaskReason.OUT_OF_MEMORY, TaskReason.TIMEOUT}
)
"""Where code matters; what a user can mend by himself is told by the error's own sentence."""
_RESULT_LINES = 24


@examples("tunefleet show task-3f9a", "tunefleet show task-3f9a --json | jq .result", "tunefleet show wf-81c2")
def show(task: TaskOrWorkflow, *, as_json: Json = False) -> None:
    """Show all that is known of a task, or a workflow's tasks in their order."""
    with connect() as client:
        if is_workflow(task):
            workflow = client.workflows.get(task)
            if as_json:
                print_json(workflow)
            else:
                say(stages.screen(workflow))
            return
        detail = client.tasks.get(task)
        if as_json:
            print_json(detail)
            return
        others = client.workflows.get(detail.workflow_id).tasks
        artifacts = client.artifacts.list(task_id=detail.id).items
        needed = memory_estimate(client.events.list(task_id=detail.id, kinds=["task.message"]))
    say(screen(detail, artifacts, needed, others))


def screen(
    task: TaskDetail,
    artifacts: tuple[ArtifactView, ...] = (),
    memory: str | None = None,
    siblings: Sequence[TaskView] = (),
) -> RenderableType:
    """Return the whole screen for a task.

    Args:
        task: All that is known of it.
        artifacts: What it has left.
        memory: What it was expected to need.
        siblings: The tasks of its workflow.
    """
    parts: list[RenderableType] = [
        Text.assemble((task.name, "head"), "  ", (task.id, "id"), "  ", status_text(task.status)),
        facts([*_facts(task), ("memory", memory)]),
    ]
    if task.error:
        parts += [Text(), Text(task.error, style="bad")]
    if task.detail and task.reason in _TRACEBACK_FOR:
        tail = task.detail.rstrip().splitlines()[-_TRACEBACK_LINES:]
        parts.append(Padding(Text("\n".join(tail), style="dim"), (0, 0, 0, 2)))
    if task.attempts > 1:
        parts += [Text(), Text("Attempts", style="head"), _attempts(task)]
    if len(siblings) > 1:
        parts += [Text(), Text("Stages", style="head"), stages.stage_table(siblings)]
    if result := executor_result(task):
        parts += [Text(), Text("Result", style="head"), facts(_flat(result)[:_RESULT_LINES])]
    if artifacts:
        parts += [Text(), Text("Artifacts", style="head"), artifact_table(artifacts)]
    parts += [Text(), Text(_next(task, artifacts), style="dim")]
    return Group(*parts)


def executor_result(task: TaskDetail) -> dict[str, Any]:
    """Return what the executor found, without the envelope that the server puts around it; empty without a result."""
    envelope = task.result or {}
    inner = envelope.get("result")
    return inner if isinstance(inner, dict) else envelope


def memory_estimate(events: Sequence[EventView]) -> str | None:
    """Return the newest estimate among a task's events, in words; None if there is none."""
    found = [event.data.get("data") for event in events if event.data.get("name") == "memory.estimate"]
    figures = found[-1] if found else None
    if not isinstance(figures, dict) or not isinstance(figures.get("total_bytes"), int):
        return None
    parts = ("weights", "gradients", "optimizer", "activations", "logits")
    known = [(part, figures.get(f"{part}_bytes")) for part in parts]
    listed = ", ".join(f"{part} {words.size(count)}" for part, count in known if isinstance(count, int) and count)
    free = figures.get("available_bytes")
    there = f" of {words.size(free)} free on the {figures.get('device')}" if isinstance(free, int) else ""
    return f"about {words.size(figures['total_bytes'])}{there} ({listed})"


def _facts(task: TaskDetail) -> list[tuple[str, RenderableType | None]]:
    progress = task.progress
    running = progress is not None and not TaskStatus(task.status).final
    return [
        ("kind", task.kind),
        ("model", _at(task.spec, "model", "source", "identifier")),
        ("why it waits", task.why),
        ("stalled since", f"{task.stalled_since:%Y-%m-%d %H:%M:%S} UTC" if task.stalled_since else None),
        ("reason", None if task.reason in PLAIN_REASONS else task.reason),
        ("workflow", task.workflow_id),
        ("waits for", ", ".join(task.depends_on) if task.status == TaskStatus.PENDING else None),
        ("part", f"{task.shard[0] + 1} of {task.shard[1]} of {task.shard_of}" if task.shard else None),
        ("retry of", task.parent_task_id),
        ("owner", task.owner),
        ("worker", task.worker_id),
        ("submitted", f"{task.created_at:%Y-%m-%d %H:%M:%S} UTC, {words.age(task.created_at)} ago"),
        ("run time", words.duration(run_time_s(task)) if task.started_at else None),
        ("progress", f"{progress.phase} {progress_text(task)}" if running and progress else None),
        ("step time", words.step_time(progress.step_time_s) if running and progress else None),
        ("time left", words.duration(progress.eta_s) if running and progress and progress.eta_s else None),
    ]


def _at(tree: object, *keys: str) -> str | None:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return str(tree) if tree is not None else None


def _flat(tree: dict[str, object], prefix: str = "") -> list[tuple[str, RenderableType | None]]:
    rows: list[tuple[str, RenderableType | None]] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            rows += _flat(value, f"{name}.")
        elif isinstance(value, list):
            rows.append((name, words.plural(len(value), "entry").replace("entrys", "entries")))
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            rows.append((name, None if value is None else str(value)))
        else:
            rows.append((name, words.number(value)))
    return rows


def _attempts(task: TaskDetail) -> RenderableType:
    listing = table("no", "worker", "state", "reason", "error", right=("no",), wide="error")
    for attempt in task.attempt_list:
        listing.add_row(
            str(attempt.number), attempt.worker_id, attempt.state, attempt.reason or "", cut(attempt.error or "")
        )
    return listing


def artifact_table(artifacts: tuple[ArtifactView, ...]) -> RenderableType:
    """Return a table of artifacts."""
    listing = table("name", "kind", "files", "size", "age", "id", right=("files", "size", "age"))
    for made in artifacts:
        listing.add_row(
            made.name,
            made.kind,
            str(made.file_count),
            words.size(made.size_bytes),
            words.age(made.created_at),
            Text(made.id, style="id"),
        )
    return listing


def _next(task: TaskDetail, artifacts: tuple[ArtifactView, ...]) -> str:
    if task.status == TaskStatus.PAUSED:
        return f"Go on: tunefleet resume {task.id}   Checkpoints: tunefleet checkpoints {task.id}"
    if not TaskStatus(task.status).final:
        return f"Follow: tunefleet logs -f {task.id}   Plot: tunefleet metrics --plot {task.id}"
    if task.status == TaskStatus.FAILED:
        return f"Log: tunefleet logs {task.id}   Again: tunefleet retry {task.id}   On: tunefleet resume {task.id}"
    if artifacts:
        return f"Fetch: tunefleet artifacts get {artifacts[0].id}"
    return f"Log: tunefleet logs {task.id}"
