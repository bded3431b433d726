"""API views of tasks, their attempts, commands and checkpoints, and of workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from tunefleet.db.rows import (
    AttemptRow,
    CommandRow,
    DocumentRow,
    LaunchRow,
    TaskRow,
    WorkflowRow,
)
from tunefleet.orchestrator import redaction
from tunefleet.orchestrator.tasks.checkpoints import CheckpointInfo
from tunefleet.orchestrator.tasks.relations import Related
from tunefleet.orchestrator.views import read_progress, to_datetime, to_optional_datetime
from tunefleet.schemas.api import (
    AttemptView,
    CheckpointView,
    CommandView,
    ProgressView,
    RetriedView,
    TaskDetail,
    TaskView,
    WorkflowDetail,
    WorkflowView,
)
from tunefleet.schemas.fleet import TaskGlance


def progress_view(launches: Sequence[LaunchRow]) -> ProgressView | None:
    """Return the newest progress record of a task's launches; None if it is invalid."""
    text = next((row.progress for row in reversed(launches) if row.progress), None)
    if text is None:
        return None
    try:
        return read_progress(orjson.loads(text))
    except ValueError:
        # Stored by a version that did not validate records: one task must not break the whole list.
        return None


def _task_fields(
    row: TaskRow, why: str | None, launches: Sequence[LaunchRow], related: Related | None
) -> dict[str, Any]:
    known = related or Related()
    whole = known.wholes.get(row.seq)
    return {
        "id": row.id,
        "workflow_id": row.workflow_id,
        "name": row.title or row.name,
        "original_name": row.name if row.title else None,
        "kind": row.kind,
        "model": row.model,
        "dataset": row.dataset,
        "method": row.method,
        "tags": known.tags.get(row.seq, ()),
        "notes": known.notes.get(row.seq),
        "status": row.status,
        "reason": row.reason,
        "error": row.error,
        "why": why,
        "owner": row.owner,
        "priority": row.priority,
        "attempts": row.attempts,
        "worker_id": row.worker_id,
        "parent_task_id": row.parent_task_id,
        "created_at": to_datetime(row.created_at),
        "queued_at": to_optional_datetime(row.queued_at),
        "started_at": to_optional_datetime(row.started_at),
        "finished_at": to_optional_datetime(row.finished_at),
        "ran_s": known.ran.get(row.seq, 0.0),
        "desired": row.desired,
        "stalled_since": to_optional_datetime(row.stalled_since),
        "progress": progress_view(launches),
        "depends_on": tuple(id_ for id_, _ in known.upstreams.get(row.seq, ())),
        "shard_of": whole.parent_id if whole else None,
        "shard": (whole.number, whole.total) if whole else None,
        "merged_into": known.merged.get(row.seq),
        "workflow_name": known.workflows.get(row.workflow_seq),
    }


def task_view(
    row: TaskRow,
    *,
    why: str | None,
    launches: Sequence[LaunchRow] = (),
    related: Related | None = None,
    glance: TaskGlance | None = None,
    config: DocumentRow | None = None,
) -> TaskView:
    """Return a task as a list item."""
    spec = None if config is None else redaction.tree(orjson.loads(config.as_run))
    return TaskView(**_task_fields(row, why, launches, related), glance=glance, config=spec)


def task_detail(
    row: TaskRow,
    document: DocumentRow,
    attempts: Sequence[AttemptRow],
    *,
    why: str | None,
    launches: Sequence[LaunchRow] = (),
    related: Related | None = None,
    gangs: Mapping[str, Sequence[AttemptRow]] | None = None,
) -> TaskDetail:
    """Return a task with all details."""
    nodes = gangs or {}
    inputs: dict[str, dict[str, str]] = orjson.loads(document.inputs)
    return TaskDetail(
        **_task_fields(row, why, launches, related),
        spec=redaction.tree(orjson.loads(document.spec)),
        resolved=redaction.tree(orjson.loads(document.resolved)) if document.resolved else None,
        inputs={pointer: ref["digest"] for pointer, ref in inputs.items()},
        result=orjson.loads(document.result) if document.result else None,
        detail=document.detail,
        attempt_list=tuple(attempt_view(attempt, nodes.get(attempt.id, ())) for attempt in attempts),
    )


def attempt_view(row: AttemptRow, nodes: Sequence[AttemptRow] = ()) -> AttemptView:
    """Return an attempt, with its nodes if it ran on several workers."""
    return AttemptView.model_validate(
        {
            "number": row.number,
            "worker_id": row.worker_id,
            "state": row.state,
            "reason": row.reason,
            "error": row.error,
            "offered_at": to_datetime(row.offered_at),
            "accepted_at": to_optional_datetime(row.accepted_at),
            "finished_at": to_optional_datetime(row.finished_at),
            "nodes": tuple(
                {"worker_id": node.worker_id, "state": node.state, "reason": node.reason, "error": node.error}
                for node in nodes
            ),
        }
    )


def command_view(row: CommandRow) -> CommandView:
    """Return the view of a command."""
    return CommandView.model_validate(
        {
            **{
                name: getattr(row, name)
                for name in ("id", "command", "state", "step", "checkpoint", "message", "owner")
            },
            "task_id": row.task_id or "",
            "worker_id": row.worker_id,
            "result": orjson.loads(row.result) if row.result else None,
            "data": orjson.loads(row.data),
            "created_at": to_datetime(row.created_at),
            "updated_at": to_datetime(row.updated_at),
        }
    )


def checkpoint_view(checkpoint: CheckpointInfo) -> CheckpointView:
    """Return the view of a checkpoint."""
    record = checkpoint.record
    return CheckpointView(
        step=checkpoint.step,
        name=str(record["name"]),
        digest=str(record.get("digest", "")),
        size_bytes=int(record.get("size_bytes", 0)),
        stall_s=float(record.get("stall_s", 0.0)),
        best=checkpoint.best,
        eval_loss=checkpoint.eval_loss,
        artifact=checkpoint.artifact.name if checkpoint.artifact else None,
        resumable=checkpoint.resumable,
        at=to_datetime(float(record["at"])),
    )


def workflow_view(
    row: WorkflowRow, warnings: str, tasks: Sequence[TaskView], newer: WorkflowRow | None = None
) -> WorkflowView:
    """Return a workflow as a list item."""
    return WorkflowView(
        id=row.id,
        name=row.name,
        owner=row.owner,
        status=row.status,
        created_at=to_datetime(row.created_at),
        tasks=tuple(tasks),
        warnings=tuple(orjson.loads(warnings)),
        retried_as=RetriedView(id=newer.id, status=newer.status) if newer is not None else None,
    )


def workflow_detail(view: WorkflowView, document: str) -> WorkflowDetail:
    """Return a workflow with its workflow file, redacted."""
    return WorkflowDetail(**dict(view), document=redaction.text(document))
