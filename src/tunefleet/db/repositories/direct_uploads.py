"""Files that workers upload directly to the object store and that are not accepted yet."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, update

from tunefleet.db.tables.operations import arriving_files

_at = arriving_files.c


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


def insert_one(connection: Connection, row: ArrivingRow) -> None:
    """Store a new upload."""
    connection.execute(insert(arriving_files), [row._asdict()])


def of_attempt(connection: Connection, attempt_id: str, digest: str) -> ArrivingRow | None:
    """Return an attempt's upload of a file."""
    query = select(arriving_files).where(_at.attempt_id == attempt_id, _at.digest == digest)
    row = connection.execute(query).first()
    return None if row is None else ArrivingRow(*row)


def touch(connection: Connection, name: str, busy_until: float) -> bool:
    """Mark an upload as active; returns whether it exists."""
    newer = update(arriving_files).where(_at.name == name, _at.busy_until < busy_until).values(busy_until=busy_until)
    if connection.execute(newer).rowcount:
        return True
    return connection.execute(select(_at.name).where(_at.name == name)).first() is not None


def delete_one(connection: Connection, name: str) -> bool:
    """Delete an upload; returns whether it existed."""
    return bool(connection.execute(delete(arriving_files).where(_at.name == name)).rowcount)


def given_up(connection: Connection, before: float) -> list[ArrivingRow]:
    """Return the uploads that were inactive since a Unix time, oldest first."""
    query = select(arriving_files).where(_at.busy_until < before).order_by(_at.busy_until)
    return [ArrivingRow(*row) for row in connection.execute(query)]


def names(connection: Connection) -> set[str]:
    """Return the names of all uploads."""
    return set(connection.execute(select(_at.name)).scalars())


def taken(connection: Connection) -> tuple[int, int]:
    """Return the number of uploads, and the total size of their files."""
    query = select(func.count(), func.coalesce(func.sum(_at.size_bytes), 0)).select_from(arriving_files)
    count, size_bytes = connection.execute(query).one()
    return int(count), int(size_bytes)
