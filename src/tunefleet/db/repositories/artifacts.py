"""Artifacts, their files, known and pinned files, and files that workers are uploading directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, delete, exists, func, insert, select, true, update

from tunefleet.db import project_queries
from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.rows import ArtifactRow
from tunefleet.db.tables.core import artifact_files, artifacts, blob_pins, blobs, task_inputs
from tunefleet.db.tables.operations import arriving_files

_KNOWN = select(blobs.c.digest, blobs.c.size_bytes).where(
    blobs.c.project == bindparam("project"), blobs.c.digest.in_(bindparam("digests", expanding=True))
)
# Built once: every upload runs these, and building a statement takes longer than executing it.
_VERIFIED = (
    update(blobs)
    .where(blobs.c.project == bindparam("b_project"), blobs.c.digest == bindparam("b_digest"))
    .values(verified_at=bindparam("b_at"))
)
_NEW_BLOB = Bulk(insert(blobs), ["project", "digest", "size_bytes", "verified_at"])
_PINNED = select(exists().where(blob_pins.c.digest == bindparam("digest"), blob_pins.c.holder == bindparam("holder")))
_UNPIN = delete(blob_pins).where(blob_pins.c.holder.in_(bindparam("holders", expanding=True)))
_HOLD = Bulk(insert(blob_pins), ["digest", "holder", "until"])
_UNPIN_FILES = delete(blob_pins).where(
    blob_pins.c.holder.in_(bindparam("holders", expanding=True)),
    blob_pins.c.digest.in_(bindparam("digests", expanding=True)),
)
_at = arriving_files.c


def known(connection: Connection, project: str, digests: Sequence[str]) -> set[str]:
    """Return which of these files a project has."""
    return set(sizes(connection, project, digests))


def sizes(connection: Connection, project: str, digests: Sequence[str]) -> dict[str, int]:
    """Return the sizes in bytes of these files, as far as a project has them."""
    found: dict[str, int] = {}
    for start in range(0, len(digests), 500):
        part = list(digests[start : start + 500])
        found.update(
            (digest, size) for digest, size in connection.execute(_KNOWN, {"project": project, "digests": part})
        )
    return found


def known_anywhere(connection: Connection, digests: Sequence[str]) -> set[str]:
    """Return which of these files any project has."""
    found: set[str] = set()
    for start in range(0, len(digests), 500):
        part = list(digests[start : start + 500])
        found.update(connection.execute(select(blobs.c.digest).where(blobs.c.digest.in_(part))).scalars())
    return found


def all_digests(connection: Connection) -> list[str]:
    """Return the digests of all projects' files, sorted."""
    return list(connection.execute(select(blobs.c.digest).distinct().order_by(blobs.c.digest)).scalars())


def add_blob(connection: Connection, *, project: str, digest: str, size_bytes: int, at: float) -> None:
    """Record a file with a verified digest."""
    if connection.execute(_VERIFIED, {"b_project": project, "b_digest": digest, "b_at": at}).rowcount == 0:
        _NEW_BLOB.run(connection, [(project, digest, size_bytes, at)])


def pin(connection: Connection, digests: Sequence[str], *, holder: str, until: float) -> None:
    """Keep files until a holder publishes them, replacing the holder's earlier pins."""
    unique = sorted(set(digests))
    for start in range(0, len(unique), 500):
        part = unique[start : start + 500]
        connection.execute(_UNPIN_FILES, {"holders": [holder], "digests": part})
        _HOLD.run(connection, [(digest, holder, until) for digest in part])


def hold(connection: Connection, digests: Sequence[str], *, holder: str, until: float) -> None:
    """Keep files for a holder that has no pins yet."""
    _HOLD.run(connection, [(digest, holder, until) for digest in sorted(set(digests))])


def pinned_by(connection: Connection, digest: str, holder: str) -> bool:
    """Return whether a holder pins a file."""
    return bool(connection.execute(_PINNED, {"digest": digest, "holder": holder}).scalar())


def unpin(connection: Connection, holders: Sequence[str]) -> None:
    """Release all pins of holders."""
    if holders:
        connection.execute(_UNPIN, {"holders": list(holders)})


def insert_one(connection: Connection, row: Mapping[str, Any], files: Sequence[tuple[str, str, int]]) -> None:
    """Store an artifact and its files (path, digest, size)."""
    connection.execute(insert(artifacts), [dict(row)])
    if files:
        connection.execute(
            insert(artifact_files),
            [{"artifact_id": row["id"], "path": p, "digest": d, "size_bytes": s} for p, d, s in files],
        )


def by_ids(connection: Connection, ids: Sequence[str]) -> dict[str, ArtifactRow]:
    """Return artifacts by id; unknown ids are omitted."""
    rows = (ArtifactRow(*row) for row in connection.execute(select(artifacts).where(artifacts.c.id.in_(list(ids)))))
    return {row.id: row for row in rows}


def find(connection: Connection, *, project: str, column: str, value: str) -> list[ArtifactRow]:
    """Return artifacts with this `id`, `name`, `digest` or `task_id`, newest first."""
    query = (
        select(artifacts)
        .where(artifacts.c.project == project, artifacts.c[column] == value)
        .order_by(artifacts.c.seq.desc())
    )
    return [ArtifactRow(*row) for row in connection.execute(query)]


def by_prefix(connection: Connection, prefix: str, project: str, limit: int) -> list[ArtifactRow]:
    """Return artifacts whose id has a prefix."""
    query = project_queries.with_prefix(artifacts, prefix, project, limit)
    return [ArtifactRow(*row) for row in connection.execute(query)]


def named(connection: Connection, *, project: str, name: str, task_id: str | None) -> list[ArtifactRow]:
    """Return artifacts with a name: those of a task, or those without a task; newest first."""
    query = (
        select(artifacts)
        .where(artifacts.c.project == project, artifacts.c.name == name, artifacts.c.task_id == task_id)
        .order_by(artifacts.c.seq.desc())
    )
    return [ArtifactRow(*row) for row in connection.execute(query)]


def page(
    connection: Connection, *, project: str, limit: int, before: int | None, filters: Mapping[str, str | None]
) -> list[ArtifactRow]:
    """Return artifacts, newest first.

    Args:
        filters: Column → value; `None` does not filter.
    """
    query = select(artifacts).where(artifacts.c.project == project).order_by(artifacts.c.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(artifacts.c.seq < before)
    for name, value in filters.items():
        if value is not None:
            query = query.where(artifacts.c[name].in_(value.split(",")))
    return [ArtifactRow(*row) for row in connection.execute(query)]


def files(connection: Connection, artifact_id: str) -> list[tuple[str, str, int]]:
    """Return path, digest and size of an artifact's files, by path."""
    query = (
        select(artifact_files.c.path, artifact_files.c.digest, artifact_files.c.size_bytes)
        .where(artifact_files.c.artifact_id == artifact_id)
        .order_by(artifact_files.c.path)
    )
    return [tuple(row) for row in connection.execute(query)]


def files_of_task(connection: Connection, task_id: str) -> dict[str, list[tuple[str, str, int]]]:
    """Return path, digest and size of a task's files, by artifact id, sorted by path."""
    columns = artifact_files.c.artifact_id, artifact_files.c.path, artifact_files.c.digest, artifact_files.c.size_bytes
    mine = select(artifacts.c.id).where(artifacts.c.task_id == task_id)
    query = select(*columns).where(artifact_files.c.artifact_id.in_(mine)).order_by(*columns[:2])
    found: dict[str, list[tuple[str, str, int]]] = {}
    for artifact_id, path, digest, size_bytes in connection.execute(query):
        found.setdefault(artifact_id, []).append((path, digest, size_bytes))
    return found


def holding_file(connection: Connection, *, digest: str, project: str | None = None) -> list[ArtifactRow]:
    """Return the artifacts that contain a file, of one project or of all."""
    holding = select(artifact_files.c.artifact_id).where(artifact_files.c.digest == digest)
    query = select(artifacts).where(artifacts.c.id.in_(holding))
    if project is not None:
        query = query.where(artifacts.c.project == project)
    return [ArtifactRow(*row) for row in connection.execute(query)]


def delete_rows(connection: Connection, ids: Sequence[str]) -> None:
    """Delete artifacts; their files stay until garbage collection."""
    connection.execute(delete(artifact_files).where(artifact_files.c.artifact_id.in_(list(ids))))
    connection.execute(delete(artifacts).where(artifacts.c.id.in_(list(ids))))


def of_tasks(connection: Connection, task_ids: Sequence[str]) -> list[str]:
    """Return the ids of artifacts that tasks produced."""
    return list(connection.execute(select(artifacts.c.id).where(artifacts.c.task_id.in_(list(task_ids)))).scalars())


def read_by(connection: Connection, task_ids: Sequence[str]) -> dict[str, list[ArtifactRow]]:
    """Return the artifacts that tasks read, oldest first, by the reading task's id."""
    found: dict[str, list[ArtifactRow]] = {}
    for start in range(0, len(task_ids), 500):
        query = (
            select(task_inputs.c.task_id.label("reader"), artifacts)
            .join(task_inputs, task_inputs.c.artifact_id == artifacts.c.id)
            .where(task_inputs.c.task_id.in_(list(task_ids[start : start + 500])))
            .order_by(artifacts.c.seq)
        )
        for reader, *row in connection.execute(query):
            found.setdefault(reader, []).append(ArtifactRow(*row))
    return found


def of_kind(connection: Connection, task_ids: Sequence[str], kind: str) -> list[ArtifactRow]:
    """Return the artifacts of one kind that tasks produced, newest first."""
    if not task_ids:
        return []
    query = (
        select(artifacts)
        .where(artifacts.c.task_id.in_(list(task_ids)), artifacts.c.kind == kind)
        .order_by(artifacts.c.seq.desc())
    )
    return [ArtifactRow(*row) for row in connection.execute(query)]


def unpin_files(connection: Connection, digests: Sequence[str], holders: Sequence[str]) -> None:
    """Release pins of some files of holders."""
    for start in range(0, len(digests), 500):
        part = list(digests[start : start + 500])
        connection.execute(_UNPIN_FILES, {"holders": list(holders), "digests": part})


def unreferenced(connection: Connection, digests: Sequence[str], *, now: float) -> list[str]:
    """Return which of these files are neither in an artifact nor pinned."""
    found: list[str] = []
    for start in range(0, len(digests), 500):
        query = select(blobs.c.digest).where(
            blobs.c.digest.in_(list(digests[start : start + 500])),
            ~exists().where(artifact_files.c.digest == blobs.c.digest),
            ~exists().where(blob_pins.c.digest == blobs.c.digest, blob_pins.c.until > now),
        )
        found += connection.execute(query).scalars()
    return found


def garbage(connection: Connection, *, now: float, verified_before: float) -> list[tuple[str, int]]:
    """Return digest and size of files that are neither in an artifact nor pinned."""
    query = select(blobs.c.digest, blobs.c.size_bytes).where(
        blobs.c.verified_at < verified_before,
        ~exists().where(artifact_files.c.digest == blobs.c.digest),
        ~exists().where(blob_pins.c.digest == blobs.c.digest, blob_pins.c.until > now),
    )
    return [tuple(row) for row in connection.execute(query)]


def stored_bytes(connection: Connection, digests: Sequence[str] | None = None) -> int:
    """Return the total size of all files, or of some; a file of several projects counts once."""
    if digests is not None:
        parts = (list(digests[start : start + 500]) for start in range(0, len(digests), 500))
        return sum(_bytes(connection, blobs.c.digest.in_(part)) for part in parts)
    return _bytes(connection, true())


def _bytes(connection: Connection, which: ColumnElement[bool]) -> int:
    sizes_ = select(func.max(blobs.c.size_bytes).label("size_bytes")).where(which).group_by(blobs.c.digest).subquery()
    return int(connection.execute(select(func.coalesce(func.sum(sizes_.c.size_bytes), 0))).scalar_one())


def delete_blobs(connection: Connection, digests: Sequence[str], *, now: float) -> None:
    """Delete the rows of files, and expired pins."""
    for start in range(0, len(digests), 500):
        connection.execute(delete(blobs).where(blobs.c.digest.in_(list(digests[start : start + 500]))))
    connection.execute(delete(blob_pins).where(blob_pins.c.until <= now))


class ArrivingRow(NamedTuple):
    """A direct upload in progress."""

    name: str
    attempt_id: str
    digest: str
    size_bytes: int
    part_bytes: int
    ref: str
    begun_at: float
    busy_until: float


def insert_arriving(connection: Connection, row: ArrivingRow) -> None:
    """Store a new upload."""
    connection.execute(insert(arriving_files), [row._asdict()])


def arriving_of_attempt(connection: Connection, attempt_id: str, digest: str) -> ArrivingRow | None:
    """Return an attempt's upload of a file."""
    query = select(arriving_files).where(_at.attempt_id == attempt_id, _at.digest == digest)
    row = connection.execute(query).first()
    return None if row is None else ArrivingRow(*row)


def touch_arriving(connection: Connection, name: str, busy_until: float) -> bool:
    """Mark an upload as active; returns whether it exists."""
    newer = update(arriving_files).where(_at.name == name, _at.busy_until < busy_until).values(busy_until=busy_until)
    if connection.execute(newer).rowcount:
        return True
    return connection.execute(select(_at.name).where(_at.name == name)).first() is not None


def delete_arriving(connection: Connection, name: str) -> bool:
    """Delete an upload; returns whether it existed."""
    return bool(connection.execute(delete(arriving_files).where(_at.name == name)).rowcount)


def arriving_given_up(connection: Connection, before: float) -> list[ArrivingRow]:
    """Return the uploads that were inactive since a Unix time, oldest first."""
    query = select(arriving_files).where(_at.busy_until < before).order_by(_at.busy_until)
    return [ArrivingRow(*row) for row in connection.execute(query)]


def arriving_names(connection: Connection) -> set[str]:
    """Return the names of all uploads."""
    return set(connection.execute(select(_at.name)).scalars())


def arriving_taken(connection: Connection) -> tuple[int, int]:
    """Return the number of uploads, and the total size of their files."""
    query = select(func.count(), func.coalesce(func.sum(_at.size_bytes), 0)).select_from(arriving_files)
    count, size_bytes = connection.execute(query).one()
    return int(count), int(size_bytes)
