"""The logs of campaigns: lines, of which each campaign keeps the newest."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Connection, delete, insert, select

from tunefleet.store.tables_campaign import campaign_log

MAX_LINES: Final = 10_000
_SPARE: Final = 500
"""Room is made once in so many lines of all campaigns."""
_at = campaign_log.c


class LineRow(NamedTuple):
    """A line; it has a `seq` once it is stored."""

    campaign_seq: int
    cycle: int | None
    step: str | None
    level: str
    text: str
    at: float
    seq: int = 0


_LINES: Final = select(*(_at[name] for name in LineRow._fields))


def add(connection: Connection, row: LineRow, *, keep: int = MAX_LINES) -> None:
    """Add a line; now and then the oldest of each campaign are forgotten, so that about `keep` stay."""
    values = row._asdict()
    del values["seq"]
    seq = connection.execute(insert(campaign_log).returning(_at.seq), values).scalar_one()
    if seq % _SPARE == 0:
        for campaign_seq in connection.execute(select(_at.campaign_seq).distinct()).scalars().all():
            _forget(connection, campaign_seq, keep)


def after(connection: Connection, seq: int, line: int, *, limit: int, cycle: int | None = None) -> list[LineRow]:
    """Return lines behind one, oldest first.

    Args:
        connection: To read with.
        seq: The campaign's number.
        line: The `seq` of the line before; 0 for none.
        limit: How many at most.
        cycle: Only of this one.
    """
    query = _LINES.where(_at.campaign_seq == seq, _at.seq > line).order_by(_at.seq).limit(limit)
    if cycle is not None:
        query = query.where(_at.cycle == cycle)
    return [LineRow(*row) for row in connection.execute(query)]


def tail(connection: Connection, seq: int, *, limit: int, cycle: int | None = None) -> list[LineRow]:
    """Return the newest lines, oldest first."""
    query = _LINES.where(_at.campaign_seq == seq).order_by(_at.seq.desc()).limit(limit)
    if cycle is not None:
        query = query.where(_at.cycle == cycle)
    return [LineRow(*row) for row in connection.execute(query)][::-1]


def newest_at(connection: Connection) -> float | None:
    """Return when the newest line of all campaigns was written, in Unix time; null if there is none."""
    return connection.execute(select(_at.at).order_by(_at.seq.desc()).limit(1)).scalar()


def _forget(connection: Connection, seq: int, keep: int) -> None:
    newest = select(_at.seq).where(_at.campaign_seq == seq).order_by(_at.seq.desc()).offset(keep).limit(1)
    last = connection.execute(newest).scalar()
    if last is not None:
        connection.execute(delete(campaign_log).where(_at.campaign_seq == seq, _at.seq <= last))
