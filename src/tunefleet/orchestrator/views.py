"""API views of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from tunefleet.db.rows import (
    ArtifactRow,
    EventRow,
    KeyRow,
)
from tunefleet.schemas.api import (
    ArtifactDetail,
    ArtifactOrigin,
    ArtifactView,
    EventView,
    FileEntry,
    KeyView,
    ProgressView,
)

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


def artifact_view(row: ArtifactRow, origin: ArtifactOrigin | None = None) -> ArtifactView:
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
        origin=origin,
    )


def artifact_detail(row: ArtifactRow, files: Sequence[tuple[str, str, int]]) -> ArtifactDetail:
    """Return an artifact with its files."""
    entries = tuple(FileEntry(path=path, digest=digest, size_bytes=size) for path, digest, size in files)
    return ArtifactDetail(**dict(artifact_view(row)), files=entries)
