"""Rounds of federations and their claims: a claim is taken by compare-and-swap and ends with its lease."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, select, text, update

from tunefleet.db.tables.federation import federation_rounds, federations
from tunefleet.lifecycle import round as lifecycle
from tunefleet.lifecycle.round import RoundReason, RoundStatus

_at = federation_rounds.c
_CLOSED: Final = (RoundStatus.AGGREGATING.value, RoundStatus.PUBLISHING.value)
_OPEN: Final = text("federation_rounds.status IN ('sampling', 'collecting', 'aggregating', 'publishing')")
"""Same text as in the partial index, so that it is used."""
_GET = select(federation_rounds).where(_at.federation_seq == bindparam("seq"), _at.number == bindparam("at"))


class RoundRow(NamedTuple):
    """A round; `participants` and `result` are JSON."""

    federation_seq: int
    number: int
    status: str
    reason: str | None
    error: str | None
    participants: str | None
    opened_at: float
    deadline_at: float | None
    closed_at: float | None
    finished_at: float | None
    holder: str | None
    lease_until: float
    tries: int
    result: str | None
    version: int | None


def insert_one(connection: Connection, row: RoundRow) -> None:
    """Store a round; its number is unique in the federation."""
    connection.execute(insert(federation_rounds).values(row._asdict()))


def get(connection: Connection, seq: int, number: int) -> RoundRow | None:
    """Return a round."""
    row = connection.execute(_GET, {"seq": seq, "at": number}).first()
    return RoundRow(*row) if row else None


def newest(connection: Connection, seq: int, *, limit: int, before: int | None = None) -> list[RoundRow]:
    """Return the newest rounds of a federation, newest first."""
    query = select(federation_rounds).where(_at.federation_seq == seq).order_by(_at.number.desc()).limit(limit)
    if before is not None:
        query = query.where(_at.number < before)
    return [RoundRow(*row) for row in connection.execute(query)]


def count(connection: Connection, seq: int, status: RoundStatus) -> int:
    """Return the number of a federation's rounds in a status."""
    query = select(func.count()).where(_at.federation_seq == seq, _at.status == status.value)
    return connection.execute(query.select_from(federation_rounds)).scalar_one()


def change(connection: Connection, row: RoundRow, values: Mapping[str, Any]) -> RoundRow:
    """Change columns of a round other than its status, and return the changed row."""
    connection.execute(update(federation_rounds).where(_key(row.federation_seq, row.number)).values(dict(values)))
    return row._replace(**values)


def move(
    connection: Connection,
    row: RoundRow,
    reason: RoundReason,
    now: float,
    *,
    holder: str | None = None,
    error: str | None = None,
    values: Mapping[str, Any] | None = None,
) -> RoundRow | None:
    """Change the status of a round, if it still has the status that the caller read.

    Returns:
        The changed round; `None` if another process was faster: discard related changes.

    Raises:
        IllegalTransition: If the lifecycle does not allow the change.
    """
    status = lifecycle.move(RoundStatus(row.status), reason)
    changes: dict[str, Any] = {"status": status.value, "reason": reason.value, "error": error, **(values or {})}
    if status is RoundStatus.AGGREGATING:
        # Closed and unclaimed.
        changes |= {"closed_at": now, "holder": None, "lease_until": 0.0, "tries": 0}
    if status.final:
        changes |= {"finished_at": now, "holder": None, "lease_until": 0.0}
    where = [_key(row.federation_seq, row.number), _at.status == row.status]
    if holder is not None:
        where.append(_at.holder == holder)
    done = connection.execute(update(federation_rounds).where(*where).values(changes)).rowcount
    return row._replace(**changes) if done else None


def claim(connection: Connection, row: RoundRow, *, holder: str, now: float, until: float) -> RoundRow | None:
    """Claim a closed round that no process holds.

    Returns:
        The claimed round; `None` if another process holds it, or its status has changed.
    """
    changes: dict[str, Any] = {"holder": holder, "lease_until": until, "tries": row.tries + 1}
    where = (
        _key(row.federation_seq, row.number),
        _at.status == row.status,
        _at.status.in_(_CLOSED),
        _at.tries == row.tries,
        _at.lease_until <= now,
    )
    done = connection.execute(update(federation_rounds).where(*where).values(changes)).rowcount
    return row._replace(**changes) if done else None


def renew(connection: Connection, row: RoundRow, *, holder: str, until: float) -> bool:
    """Extend the lease of a round; false if another process has it now."""
    where = (_key(row.federation_seq, row.number), _at.holder == holder, _at.status.in_(_CLOSED))
    return connection.execute(update(federation_rounds).where(*where).values(lease_until=until)).rowcount > 0


def release(connection: Connection, row: RoundRow, *, holder: str, until: float, error: str | None) -> bool:
    """Release a round that cannot be finished now."""
    where = (_key(row.federation_seq, row.number), _at.holder == holder, _at.status.in_(_CLOSED))
    changes = {"holder": None, "lease_until": until, "error": error}
    return connection.execute(update(federation_rounds).where(*where).values(changes)).rowcount > 0


def to_look_after(connection: Connection) -> list[RoundRow]:
    """Return the open rounds of all federations, except collecting rounds of paused federations."""
    query = select(federation_rounds).join(federations, federations.c.seq == _at.federation_seq).where(_OPEN)
    query = query.where(_at.status.in_(_CLOSED) | (federations.c.status == "running")).order_by(_at.federation_seq)
    return [RoundRow(*row) for row in connection.execute(query)]


def held_by(connection: Connection, now: float) -> set[str]:
    """Return the holders of rounds with a valid lease."""
    query = select(_at.holder).where(_at.status.in_(_CLOSED), _at.lease_until > now, _at.holder.is_not(None))
    return set(connection.execute(query).scalars())


def without_round(connection: Connection) -> list[int]:
    """Return the numbers of running federations without an open round."""
    has_one = select(_at.federation_seq).where(_OPEN)
    query = select(federations.c.seq).where(federations.c.status == "running", federations.c.seq.not_in(has_one))
    return list(connection.execute(query).scalars())


def of_trainings(connection: Connection) -> list[int]:
    """Return the numbers of running federations of training tasks whose round is collecting."""
    query = select(_at.federation_seq).join(federations, federations.c.seq == _at.federation_seq).where(_OPEN)
    here = (_at.status == RoundStatus.COLLECTING.value, federations.c.status == "running")
    return list(connection.execute(query.where(*here, federations.c.task_seq.is_not(None))).scalars())


def due_at(row: RoundRow) -> float:
    """Return when a round needs the round scheduler next, as Unix time."""
    if row.status in _CLOSED:
        return row.lease_until
    return row.deadline_at if row.deadline_at is not None else float("inf")


def _key(seq: int, number: int) -> ColumnElement[bool]:
    return (_at.federation_seq == seq) & (_at.number == number)
