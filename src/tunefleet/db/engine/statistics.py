"""Disk usage by kind, and counts for metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy import Connection, and_, bindparam, case, exists, func, or_, select, text

from tunefleet.db.rows import TaskRow
from tunefleet.db.tables.core import (
    artifact_files,
    artifacts,
    attempts,
    blob_pins,
    blobs,
    launches,
    log_streams,
    metadata,
    tasks,
    workers,
)
from tunefleet.db.tables.federation import federation_versions

_ENGINES: Final = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
# Literals, not parameters: only then are the partial indexes used.
_QUEUED: Final = text("tasks.status = 'queued'")
_SET_ASIDE: Final = text("tasks.status IN ('pending', 'paused')")
_OPEN: Final = text("attempts.state IN ('offered', 'accepted')")
_BY_NEED = select(tasks.c.requirement_key, func.count()).where(_QUEUED).group_by(tasks.c.requirement_key)
_ASIDE = select(tasks.c.status, tasks.c.kind, func.count()).where(_SET_ASIDE).group_by(tasks.c.status, tasks.c.kind)
_HELD = select(attempts.c.state, attempts.c.kind, func.count()).where(_OPEN).group_by(attempts.c.state, attempts.c.kind)
_WORKERS = select(workers.c.status, func.count()).group_by(workers.c.status)
_RUN: Final = tasks.c.started_at.is_not(None) & tasks.c.queued_at.is_not(None)


def of_files(connection: Connection, *, checkpoint: str, now: float) -> dict[str, tuple[int, int]]:
    """Return number and bytes of the stored files by kind; each file counts once."""
    kept = select(blobs.c.digest, func.max(blobs.c.size_bytes).label("size_bytes")).group_by(blobs.c.digest).subquery()
    inside = and_(artifact_files.c.digest == kept.c.digest, artifact_files.c.artifact_id == artifacts.c.id)
    pinned = and_(blob_pins.c.digest == kept.c.digest, blob_pins.c.until > now)
    by_federation = or_(blob_pins.c.holder.like("fed-%"), blob_pins.c.holder.like("update-%"))
    kind = case(
        (exists().where(inside, artifacts.c.task_id.is_not(None), artifacts.c.kind != checkpoint), "results"),
        (exists().where(inside, artifacts.c.kind == checkpoint), "checkpoints"),
        (exists().where(inside, federation_versions.c.artifact_id == artifacts.c.id), "federations"),
        (exists().where(inside), "data"),
        (exists().where(pinned, by_federation), "federations"),
        (exists().where(pinned), "arriving"),
        else_="unused",
    ).label("kind")
    sorted_ = select(kind, kept.c.size_bytes).subquery()
    query = select(sorted_.c.kind, func.count(), func.sum(sorted_.c.size_bytes)).group_by(sorted_.c.kind)
    return {name: (count, int(size)) for name, count, size in connection.execute(query)}


def of_logs(connection: Connection) -> int:
    """Return how many bytes of logs were received."""
    return int(connection.execute(select(func.coalesce(func.sum(log_streams.c.received), 0))).scalar_one())


def of_journals(connection: Connection) -> int:
    """Return how many journal records were received."""
    return int(connection.execute(select(func.coalesce(func.sum(launches.c.cursor), 0))).scalar_one())


def of_database(connection: Connection) -> tuple[int, int]:
    """Return number and bytes of SQLite's files, or of PostgreSQL's tables."""
    if connection.dialect.name == "postgresql":
        sizes = func.pg_total_relation_size(func.to_regclass(bindparam("name")))
        ours = [connection.execute(select(sizes), {"name": name}).scalar_one() for name in metadata.tables]
        return len(ours), sum(size or 0 for size in ours)
    (path,) = (Path(row.file) for row in connection.execute(text("PRAGMA database_list")) if row.name == "main")
    there = [each.stat().st_size for end in ("", "-wal", "-shm") if (each := path.with_name(path.name + end)).exists()]
    return len(there), sum(there)


def engine(connection: Connection) -> str:
    """Return the database engine with its version, such as `SQLite 3.45.1`."""
    dialect = connection.dialect
    version = ".".join(str(part) for part in dialect.server_version_info or ())
    return f"{_ENGINES[dialect.name]} {version}"


def queued_by_need(connection: Connection) -> list[tuple[str, int]]:
    """Return the number of queued tasks by requirement key, highest first."""
    found = [(key, count) for key, count in connection.execute(_BY_NEED)]
    return sorted(found, key=lambda each: -each[1])


def set_aside(connection: Connection) -> list[tuple[str, str, int]]:
    """Return status, kind and number of pending and paused tasks."""
    return [tuple(row) for row in connection.execute(_ASIDE)]


def held(connection: Connection) -> list[tuple[str, str, int]]:
    """Return state, kind and number of the open attempts."""
    return [tuple(row) for row in connection.execute(_HELD)]


def workers_by_status(connection: Connection) -> dict[str, int]:
    """Return the number of workers by status."""
    return {status: count for status, count in connection.execute(_WORKERS)}


def oldest_queued(connection: Connection, requirement_keys: list[str]) -> float | None:
    """Return since when the oldest task of these queues has been waiting; `None` if they are empty."""
    found = None
    for key in requirement_keys:
        query = select(tasks.c.queued_at).where(_QUEUED, tasks.c.requirement_key == key).order_by(tasks.c.rank)
        at = connection.execute(query.limit(1)).scalar()
        if at is not None and (found is None or at < found):
            found = at
    return found


class KindRow(NamedTuple):
    """Tasks of one kind and status; sums are in seconds, over tasks that have run."""

    kind: str
    status: str
    how_many: int
    again: int
    ran: int
    queue_s: float
    execution_s: float
    total_s: float


def by_kind(connection: Connection, project: str) -> list[KindRow]:
    """Return the sums of a project's tasks by kind and status; scans all of its tasks."""
    ended = func.coalesce(tasks.c.finished_at, tasks.c.started_at)
    query = select(
        tasks.c.kind,
        tasks.c.status,
        func.count(),
        func.sum(case((tasks.c.attempts > 1, tasks.c.attempts - 1), else_=0)),
        func.sum(case((_RUN, 1), else_=0)),
        func.sum(case((_RUN, tasks.c.started_at - tasks.c.queued_at), else_=0.0)),
        func.sum(case((_RUN, ended - tasks.c.started_at), else_=0.0)),
        func.sum(case((_RUN, ended - tasks.c.created_at), else_=0.0)),
    ).group_by(tasks.c.kind, tasks.c.status)
    query = query.where(tasks.c.project == project)
    return [KindRow(*row) for row in connection.execute(query)]


def newest_ended(connection: Connection, project: str, *, limit: int) -> list[TaskRow]:
    """Return a project's tasks that have ended, latest created first."""
    query = (
        select(tasks)
        .where(tasks.c.project == project, tasks.c.finished_at.is_not(None))
        .order_by(tasks.c.seq.desc())
        .limit(limit)
    )
    return [TaskRow(*row) for row in connection.execute(query)]
