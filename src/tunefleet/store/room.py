"""How much room things take: files by what refers to them, logs, journals, the database itself."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, and_, bindparam, case, exists, func, or_, select, text

from tunefleet.store.tables import artifact_files, artifacts, blob_pins, blobs, launches, log_streams, metadata
from tunefleet.store.tables_federation import federation_versions

_ENGINES: Final = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


def of_files(connection: Connection, *, checkpoint: str, now: float) -> dict[str, tuple[int, int]]:
    """Return how many files there are of each kind, and their bytes; each file counts once.

    Args:
        connection: To read with.
        checkpoint: The kind of artifact that checkpoints are.
        now: Pins that have run out hold nothing.
    """
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
    """Return how many bytes of logs have come."""
    return int(connection.execute(select(func.coalesce(func.sum(log_streams.c.received), 0))).scalar_one())


def of_journals(connection: Connection) -> int:
    """Return how many journal records have come."""
    return int(connection.execute(select(func.coalesce(func.sum(launches.c.cursor), 0))).scalar_one())


def of_database(connection: Connection) -> tuple[int, int]:
    """Return how many files SQLite keeps the tables in, or how many tables PostgreSQL has, and their bytes."""
    if connection.dialect.name == "postgresql":
        sizes = func.pg_total_relation_size(func.to_regclass(bindparam("name")))
        ours = [connection.execute(select(sizes), {"name": name}).scalar_one() for name in metadata.tables]
        return len(ours), sum(size or 0 for size in ours)
    (path,) = (Path(row.file) for row in connection.execute(text("PRAGMA database_list")) if row.name == "main")
    there = [each.stat().st_size for end in ("", "-wal", "-shm") if (each := path.with_name(path.name + end)).exists()]
    return len(there), sum(there)


def engine(connection: Connection) -> str:
    """Return what keeps the tables, with its version, such as `SQLite 3.45.1`."""
    dialect = connection.dialect
    version = ".".join(str(part) for part in dialect.server_version_info or ())
    return f"{_ENGINES[dialect.name]} {version}"
