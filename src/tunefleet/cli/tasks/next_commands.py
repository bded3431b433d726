"""The commands that make sense after looking at a task, with its real names."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.cli.tasks import failure_causes, workflow_view
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.placement import LIGHT_KINDS
from tunefleet.schemas.api import ArtifactView, TaskDetail, TaskView

Command = tuple[str, str]

# A reward model scores texts; it has no answers to chat with.
_SCORING = "reward"
_CHAT_ARTIFACTS = frozenset({"adapter", "model"})
_ENDED_EARLY = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})


def after(
    task: TaskDetail,
    artifacts: Sequence[ArtifactView] = (),
    siblings: Sequence[TaskView] = (),
    *,
    log: bool = False,
    resumable: bool = False,
) -> list[Command]:
    """Return labels and commands.

    Args:
        log: Whether the task printed anything.
        resumable: Whether a task can resume from one of its checkpoints.
    """
    id_ = task.id
    if task.status == TaskStatus.PAUSED:
        return [("Resume", f"tunefleet resume {id_}"), ("Checkpoints", f"tunefleet checkpoints {id_}")]
    if not TaskStatus(task.status).final:
        return _of_unfinished(task)
    origin = failure_causes.cause(task, siblings)
    if task.status == TaskStatus.SKIPPED:
        return [("Details", f"tunefleet show {origin.id if origin is not None else task.workflow_id}")]
    if origin is not None:
        return [("Details", f"tunefleet show {origin.id}"), *workflow_view.run_left(origin, task.workflow_id)]
    logged = [("Log", f"tunefleet logs {id_}")] if log else []
    if task.status in _ENDED_EARLY:
        return [*_of_failed(task, siblings, resumable=resumable), *logged]
    made = [("Download", f"tunefleet artifacts get {each.name} --task {id_}") for each in artifacts]
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
