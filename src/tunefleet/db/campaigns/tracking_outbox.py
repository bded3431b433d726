"""What trackers are told of cycles: rows that wait until they are told, and stay to say where the run is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, update

from tunefleet.db.tables.operations import campaign_tracking

_at = campaign_tracking.c


class TrackingRow(NamedTuple):
    """A cycle and a tracker of it; times are Unix times."""

    campaign_seq: int
    cycle: int
    tracker: str
    revision: int
    recorded_at: float
    tries: int
    not_before: float
    told_at: float | None
    place: str | None
    error: str | None


def enter(connection: Connection, seq: int, cycle: int, tracker: str, now: float) -> None:
    """Let a tracker be told of a cycle; of one that was entered before it is told as of another revision."""
    here = (_at.campaign_seq == seq, _at.cycle == cycle, _at.tracker == tracker)
    known = connection.execute(select(_at.revision).where(*here)).scalar()
    connection.execute(delete(campaign_tracking).where(*here))
    revision = 0 if known is None else known + 1
    row = TrackingRow(seq, cycle, tracker, revision, now, 0, 0.0, None, None, None)
    connection.execute(insert(campaign_tracking).values(row._asdict()))


def untold(connection: Connection, now: float, *, limit: int) -> list[TrackingRow]:
    """Return what is to be told by now, of all campaigns: what has waited longest first."""
    query = select(campaign_tracking).where(_at.told_at.is_(None), _at.not_before <= now)
    query = query.order_by(_at.not_before, _at.recorded_at, _at.campaign_seq, _at.cycle, _at.tracker).limit(limit)
    return [TrackingRow(*row) for row in connection.execute(query)]


def any_untold(connection: Connection) -> bool:
    """Say whether anything is yet to be told, now or later."""
    return connection.execute(select(_at.cycle).where(_at.told_at.is_(None)).limit(1)).first() is not None


def next_at(connection: Connection, after: float) -> float | None:
    """Return when the next one is to be told that is not to be told yet; null if there is none."""
    query = select(func.min(_at.not_before)).where(_at.told_at.is_(None), _at.not_before > after)
    return connection.execute(query).scalar()


def of_cycles(connection: Connection, seq: int, numbers: Sequence[int]) -> list[TrackingRow]:
    """Return the rows of some cycles of a campaign."""
    query = select(campaign_tracking).where(_at.campaign_seq == seq, _at.cycle.in_(list(numbers)))
    return [TrackingRow(*row) for row in connection.execute(query.order_by(_at.cycle, _at.tracker))]


def change(connection: Connection, row: TrackingRow, values: Mapping[str, Any]) -> bool:
    """Change columns of a row; false if it was recorded anew meanwhile."""
    where = (
        _at.campaign_seq == row.campaign_seq,
        _at.cycle == row.cycle,
        _at.tracker == row.tracker,
        _at.revision == row.revision,
    )
    return connection.execute(update(campaign_tracking).where(*where).values(dict(values))).rowcount > 0


def forget(connection: Connection, row: TrackingRow) -> None:
    """Remove a row whose campaign does not want to be tracked there any more, unless it was recorded anew."""
    where = (
        _at.campaign_seq == row.campaign_seq,
        _at.cycle == row.cycle,
        _at.tracker == row.tracker,
        _at.revision == row.revision,
    )
    connection.execute(delete(campaign_tracking).where(*where))
