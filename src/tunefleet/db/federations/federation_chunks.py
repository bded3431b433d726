"""The data of a federation in parts, dealt out to workers for a while each."""

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
    """A part of a federation's data; `number` counts from 0."""

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
    """Store the parts of a federation's data."""
    values = [row._asdict() for row in rows]
    if values:
        connection.execute(insert(federation_chunks), values)


def get(connection: Connection, federation_seq: int, number: int) -> ChunkRow | None:
    """Return a chunk."""
    query = select(federation_chunks).where(_at.federation_seq == federation_seq, _at.number == number)
    row = connection.execute(query).first()
    return ChunkRow(*row) if row else None


def held_by(connection: Connection, federation_seq: int, worker: str) -> ChunkRow | None:
    """Return the chunk that a worker has claimed and not finished, however old its lease is."""
    row = connection.execute(_HELD_BY, {"seq": federation_seq, "worker": worker}).first()
    return ChunkRow(*row) if row else None


def held(connection: Connection, federation_seq: int) -> dict[str, int]:
    """Return which chunk each worker has claimed and not finished."""
    query = select(_at.worker, _at.number).where(_at.federation_seq == federation_seq, _at.state == CLAIMED)
    return {worker: number for worker, number in connection.execute(query.order_by(_at.number.desc()))}


def claim(connection: Connection, federation_seq: int, worker: str, *, now: float, until: float) -> ChunkRow | None:
    """Give a worker the first chunk that is free, or whose lease has ended; null if there is none."""
    query = select(federation_chunks).where(_at.federation_seq == federation_seq, _claimable(now)).order_by(_at.number)
    for row in [ChunkRow(*found) for found in connection.execute(query.limit(16))]:
        here = (_at.federation_seq == federation_seq, _at.number == row.number, _at.claims == row.claims)
        changes: dict[str, Any] = {"state": CLAIMED, "worker": worker, "lease_until": until, "claims": row.claims + 1}
        # Another server may have been faster with this one.
        if connection.execute(update(federation_chunks).where(*here, _claimable(now)).values(changes)).rowcount:
            return row._replace(**changes)
    return None


def renew(connection: Connection, row: ChunkRow, *, until: float) -> bool:
    """Let a worker keep its chunk for longer; false if it has lost it."""
    here = (_at.federation_seq == row.federation_seq, _at.number == row.number, _at.worker == row.worker)
    changes = update(federation_chunks).where(*here, _at.state == CLAIMED).values(lease_until=until)
    return connection.execute(changes).rowcount > 0


def finish(connection: Connection, federation_seq: int, worker: str, number: int, *, now: float) -> bool:
    """Note that a worker has done its chunk; false if it is not its own any more."""
    here = (_at.federation_seq == federation_seq, _at.number == number, _at.worker == worker, _at.state == CLAIMED)
    changes = {"state": DONE, "done_at": now, "lease_until": None}
    return connection.execute(update(federation_chunks).where(*here).values(changes)).rowcount > 0


def counts(connection: Connection, federation_seq: int) -> dict[str, int]:
    """Return how many chunks a federation has in each state."""
    query = select(_at.state, func.count()).where(_at.federation_seq == federation_seq).group_by(_at.state)
    return {state: number for state, number in connection.execute(query)}


def holder(federation_id: str) -> str:
    """Return who pins the files of a federation's chunks."""
    return f"{federation_id}-chunks"


def _claimable(now: float) -> ColumnElement[bool]:
    return (_at.state == FREE) | ((_at.state == CLAIMED) & (_at.lease_until <= now))
