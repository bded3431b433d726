"""API views of rows, and pages of lists: limits, cursors, and the cut between two pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

import orjson

from tunefleet.db.rows import (
    ArtifactRow,
    EventRow,
    KeyRow,
)
from tunefleet.errors import InputError
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
MAX_LIMIT: Final = 1000
_MAX_DIGITS: Final = 18


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
            "endpoint": row.endpoint,
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


class _Numbered(Protocol):
    @property
    def seq(self) -> int: ...


R = TypeVar("R", bound=_Numbered)


def before_cursor(cursor: str | None) -> int | None:
    """Parse a list cursor.

    Raises:
        InputError: If it is not a cursor.
    """
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > _MAX_DIGITS:
        raise InputError(f"{cursor[:40]!r} is not a cursor.", hint="Use `next_cursor` of the previous page.")
    return int(cursor)


def bounded_limit(limit: int) -> int:
    """Return the page size, within the allowed range."""
    return max(1, min(limit, MAX_LIMIT))


def split_page(rows: Sequence[R], limit: int) -> tuple[Sequence[R], str | None]:
    """Return the rows of a page and the cursor of the next one."""
    page = rows[:limit]
    return page, str(page[-1].seq) if len(rows) > limit else None
