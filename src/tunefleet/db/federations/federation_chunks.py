"""Chunks of a federation's data, leased to workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, select, update

from tunefleet.db.tables.federation import federation_chunks

FREE: Final = "free"
CLAIMED: Final = "claimed"
DONE: Final = "done"
_at = federation_chunks.c
_HELD_BY = (
    select(federation_chunks)
    .where(_at.federation_seq == bindparam("seq"), _at.worker == bindparam("worker"), _at.state == CLAIMED)
    .order_by(_at.number)
    .limit(1)
)


class ChunkRow(NamedTuple):
    """A chunk of a federation's data; `number` counts from 0."""

    federation_seq: int
    number: int
    digest: str
    size_bytes: int
    rows: int
    state: str
    worker: str | None
    lease_until: float | None
    claims: int
    done_at: float | None


def insert_all(connection: Connection, rows: Iterable[ChunkRow]) -> None:
    """Store the chunks of a federation."""
    values = [row._asdict() for row in rows]
    if values:
        connection.execute(insert(federation_chunks), values)


def get(connection: Connection, federation_seq: int, number: int) -> ChunkRow | None:
    """Return a chunk."""
    query = select(federation_chunks).where(_at.federation_seq == federation_seq, _at.number == number)
    row = connection.execute(query).first()
    return ChunkRow(*row) if row else None


def held_by(connection: Connection, federation_seq: int, worker: str) -> ChunkRow | None:
    """Return the chunk that a worker has claimed and not finished, even if its lease has expired."""
    row = connection.execute(_HELD_BY, {"seq": federation_seq, "worker": worker}).first()
    return ChunkRow(*row) if row else None


def held(connection: Connection, federation_seq: int) -> dict[str, int]:
    """Return the claimed and unfinished chunk of each worker."""
    query = select(_at.worker, _at.number).where(_at.federation_seq == federation_seq, _at.state == CLAIMED)
    return {worker: number for worker, number in connection.execute(query.order_by(_at.number.desc()))}


def claim(connection: Connection, federation_seq: int, worker: str, *, now: float, until: float) -> ChunkRow | None:
    """Lease the first free chunk, or one with an expired lease, to a worker; `None` if there is none."""
    query = select(federation_chunks).where(_at.federation_seq == federation_seq, _claimable(now)).order_by(_at.number)
    for row in [ChunkRow(*found) for found in connection.execute(query.limit(16))]:
        where = (_at.federation_seq == federation_seq, _at.number == row.number, _at.claims == row.claims)
        changes: dict[str, Any] = {"state": CLAIMED, "worker": worker, "lease_until": until, "claims": row.claims + 1}
        # Compare-and-swap on `claims`: another server may have claimed this chunk in the meantime.
        if connection.execute(update(federation_chunks).where(*where, _claimable(now)).values(changes)).rowcount:
            return row._replace(**changes)
    return None


def renew(connection: Connection, row: ChunkRow, *, until: float) -> bool:
    """Extend a worker's lease; false if it has lost the chunk."""
    where = (_at.federation_seq == row.federation_seq, _at.number == row.number, _at.worker == row.worker)
    changes = update(federation_chunks).where(*where, _at.state == CLAIMED).values(lease_until=until)
    return connection.execute(changes).rowcount > 0


def finish(connection: Connection, federation_seq: int, worker: str, number: int, *, now: float) -> bool:
    """Mark a worker's chunk as done; false if the worker no longer holds it."""
    where = (_at.federation_seq == federation_seq, _at.number == number, _at.worker == worker, _at.state == CLAIMED)
    changes = {"state": DONE, "done_at": now, "lease_until": None}
    return connection.execute(update(federation_chunks).where(*where).values(changes)).rowcount > 0


def counts(connection: Connection, federation_seq: int) -> dict[str, int]:
    """Return the number of a federation's chunks by state."""
    query = select(_at.state, func.count()).where(_at.federation_seq == federation_seq).group_by(_at.state)
    return {state: number for state, number in connection.execute(query)}


def holder(federation_id: str) -> str:
    """Return the holder under which a federation's chunk files are pinned."""
    return f"{federation_id}-chunks"


def _claimable(now: float) -> ColumnElement[bool]:
    return (_at.state == FREE) | ((_at.state == CLAIMED) & (_at.lease_until <= now))
