"""Versions of global adapters: their files and origin."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, insert, select, update

from tunefleet.db.tables.federation import federation_versions

_at = federation_versions.c
_GET = select(federation_versions).where(_at.federation_seq == bindparam("seq"), _at.version == bindparam("at"))


class VersionRow(NamedTuple):
    """A version; `files` is a JSON list of path, digest and size, `summary` and `report` are JSON objects."""

    federation_seq: int
    version: int
    round: int | None
    equals: int | None
    artifact_id: str
    strategy: str
    files: str
    archive_digest: str | None
    archive_size_bytes: int | None
    state_digest: str | None
    summary: str
    report: str
    created_at: float


def insert_one(connection: Connection, row: VersionRow) -> None:
    """Store a version; its number and its round are unique in the federation."""
    connection.execute(insert(federation_versions).values(row._asdict()))


def set_archive(connection: Connection, row: VersionRow, digest: str, size_bytes: int) -> VersionRow:
    """Store a version's archive, and return the changed row."""
    values = {"archive_digest": digest, "archive_size_bytes": size_bytes}
    here = (_at.federation_seq == row.federation_seq, _at.version == row.version)
    connection.execute(update(federation_versions).where(*here).values(values))
    return row._replace(archive_digest=digest, archive_size_bytes=size_bytes)


def get(connection: Connection, federation_seq: int, version: int) -> VersionRow | None:
    """Return a version."""
    row = connection.execute(_GET, {"seq": federation_seq, "at": version}).first()
    return VersionRow(*row) if row else None


def page(connection: Connection, federation_seq: int, *, limit: int, before: int | None = None) -> list[VersionRow]:
    """Return versions, newest first, without their reports."""
    names = [name for name in VersionRow._fields if name != "report"]
    query = select(*(_at[name] for name in names)).where(_at.federation_seq == federation_seq)
    query = query.order_by(_at.version.desc()).limit(limit)
    if before is not None:
        query = query.where(_at.version < before)
    return [VersionRow(**row._asdict(), report="{}") for row in connection.execute(query)]


def of_artifacts(connection: Connection, federation_seq: int) -> list[str]:
    """Return the artifact ids of a federation's versions."""
    query = select(_at.artifact_id).where(_at.federation_seq == federation_seq)
    return sorted(set(connection.execute(query).scalars()))


def holder(federation_id: str, version: int) -> str:
    """Return the holder under which further files of a version are pinned."""
    return f"{federation_id}-v{version}"


def holders_of(connection: Connection, federation_seq: int, federation_id: str) -> list[str]:
    """Return the holders under which files of a federation's versions are pinned."""
    query = select(_at.version).where(_at.federation_seq == federation_seq)
    return [holder(federation_id, version) for version in connection.execute(query).scalars()]
