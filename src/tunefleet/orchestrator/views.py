"""API views of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

import orjson

from tunefleet.db.rows import (
    ArtifactRow,
    AttemptRow,
    CommandRow,
    DocumentRow,
    EventRow,
    KeyRow,
    LaunchRow,
    TaskRow,
    WorkflowRow,
)
from tunefleet.errors import InputError
from tunefleet.orchestrator import redaction
from tunefleet.orchestrator.tasks.checkpoints import CheckpointInfo
from tunefleet.orchestrator.tasks.relations import Related
from tunefleet.schemas.api import (
    ArtifactDetail,
    ArtifactView,
    AttemptView,
    CheckpointView,
    CommandView,
    EventView,
    FileEntry,
    KeyView,
    ProgressView,
    RetriedView,
    TaskDetail,
    TaskView,
    WorkflowDetail,
    WorkflowView,
)
from tunefleet.schemas.fleet import TaskGlance

# Timestamps after this second, in the year 2242, come from wrong clocks.
LAST_SECOND: Final = 1 << 33


def to_datetime(at: float) -> datetime:
    """Return a stored time as an aware datetime."""
    return datetime.fromtimestamp(at, UTC)


def to_optional_datetime(at: float | None) -> datetime | None:
    """Return a stored time as an aware datetime; None if there is none."""
    return None if at is None else to_datetime(at)


def key_view(row: KeyRow) -> KeyView:
    """Return the view of an API key."""
    return KeyView.model_validate(
        {
            "id": row.id,
            "name": row.name,
            "role": row.role,
            "owner": row.owner,
            "project": row.project,
            "created_at": to_datetime(row.created_at),
            "last_used_at": to_optional_datetime(row.last_used_at),
            "revoked_at": to_optional_datetime(row.revoked_at),
        }
    )


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


def read_progress(record: Mapping[str, Any]) -> ProgressView:
    """Return the view of a progress record.

    Raises:
        ValueError: If its time is not plausible.
    """
    at = record.get("at")
    known = {name: record[name] for name in ProgressView.model_fields if name in record and name != "at"}
    if not isinstance(at, int | float):
        return ProgressView.model_validate(known)
    if not 0 <= at < LAST_SECOND:
        raise ValueError(at)
    return ProgressView.model_validate({**known, "at": to_datetime(at)})


def _task_fields(
    row: TaskRow, why: str | None, launches: Sequence[LaunchRow], related: Related | None
) -> dict[str, Any]:
    known = related or Related()
    whole = known.wholes.get(row.seq)
    return {
        "id": row.id,
        "workflow_id": row.workflow_id,
        "name": row.name,
        "kind": row.kind,
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
) -> TaskView:
    """Return a task as a list item."""
    return TaskView(**_task_fields(row, why, launches, related), glance=glance)


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


def checkpoint_view(known: CheckpointInfo) -> CheckpointView:
    """Return the view of a checkpoint."""
    record = known.record
    return CheckpointView(
        step=known.step,
        name=str(record["name"]),
        digest=str(record.get("digest", "")),
        size_bytes=int(record.get("size_bytes", 0)),
        stall_s=float(record.get("stall_s", 0.0)),
        best=known.best,
        eval_loss=known.eval_loss,
        artifact=known.artifact.name if known.artifact else None,
        resumable=known.resumable,
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


def event_view(row: EventRow) -> EventView:
    """Return the view of an event."""
    return EventView(
        id=row.id,
        at=to_datetime(row.at),
        kind=row.kind,
        task_id=row.task_id,
        workflow_id=row.workflow_id,
        worker_id=row.worker_id,
        data=orjson.loads(row.data),
    )


def artifact_view(row: ArtifactRow) -> ArtifactView:
    """Return an artifact as a list item."""
    return ArtifactView(
        id=row.id,
        name=row.name,
        kind=row.kind,
        digest=row.digest,
        size_bytes=row.size_bytes,
        file_count=row.file_count,
        task_id=row.task_id,
        owner=row.owner,
        created_at=to_datetime(row.created_at),
        metadata=orjson.loads(row.metadata),
    )


def artifact_detail(row: ArtifactRow, files: Sequence[tuple[str, str, int]]) -> ArtifactDetail:
    """Return an artifact with its files."""
    entries = tuple(FileEntry(path=path, digest=digest, size_bytes=size) for path, digest, size in files)
    return ArtifactDetail(**dict(artifact_view(row)), files=entries)


MAX_LIMIT: Final = 1000
_MAX_DIGITS: Final = 18


class _Numbered(Protocol):
    @property
    def seq(self) -> int: ...


R = TypeVar("R", bound=_Numbered)


def before(cursor: str | None) -> int | None:
    """Parse a list cursor.

    Raises:
        InputError: If it is not a cursor.
    """
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > _MAX_DIGITS:
        raise InputError(f"{cursor[:40]!r} is not a cursor.", hint="Use `next_cursor` of the previous page.")
    return int(cursor)


def bounded(limit: int) -> int:
    """Return the page size, within the allowed range."""
    return max(1, min(limit, MAX_LIMIT))


def split(rows: Sequence[R], limit: int) -> tuple[Sequence[R], str | None]:
    """Return the rows of a page and the cursor of the next one."""
    page = rows[:limit]
    return page, str(page[-1].seq) if len(rows) > limit else None
