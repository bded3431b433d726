"""Outbox of trackers: cycles that wait for delivery; delivered rows stay and store the location of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, update

from tunefleet.db.tables.operations import campaign_tracking

_at = campaign_tracking.c


class TrackingRow(NamedTuple):
    """A cycle and one of its trackers; times are Unix times."""

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
    """Queue a cycle for a tracker; a cycle that was queued before gets a new revision."""
    here = (_at.campaign_seq == seq, _at.cycle == cycle, _at.tracker == tracker)
    known = connection.execute(select(_at.revision).where(*here)).scalar()
    connection.execute(delete(campaign_tracking).where(*here))
    revision = 0 if known is None else known + 1
    row = TrackingRow(seq, cycle, tracker, revision, now, 0, 0.0, None, None, None)
    connection.execute(insert(campaign_tracking).values(row._asdict()))


def untold(connection: Connection, now: float, *, limit: int) -> list[TrackingRow]:
    """Return the rows to deliver by now, of all campaigns, longest waiting first."""
    query = select(campaign_tracking).where(_at.told_at.is_(None), _at.not_before <= now)
    query = query.order_by(_at.not_before, _at.recorded_at, _at.campaign_seq, _at.cycle, _at.tracker).limit(limit)
    return [TrackingRow(*row) for row in connection.execute(query)]


def any_untold(connection: Connection) -> bool:
    """Return whether any row is undelivered."""
    return connection.execute(select(_at.cycle).where(_at.told_at.is_(None)).limit(1)).first() is not None


def next_at(connection: Connection, after: float) -> float | None:
    """Return when the next row is due after a time; `None` if there is none."""
    query = select(func.min(_at.not_before)).where(_at.told_at.is_(None), _at.not_before > after)
    return connection.execute(query).scalar()


def of_cycles(connection: Connection, seq: int, numbers: Sequence[int]) -> list[TrackingRow]:
    """Return the rows of some cycles of a campaign."""
    query = select(campaign_tracking).where(_at.campaign_seq == seq, _at.cycle.in_(list(numbers)))
    return [TrackingRow(*row) for row in connection.execute(query.order_by(_at.cycle, _at.tracker))]


def change(connection: Connection, row: TrackingRow, values: Mapping[str, Any]) -> bool:
    """Change columns of a row; false if it has a newer revision."""
    where = (
        _at.campaign_seq == row.campaign_seq,
        _at.cycle == row.cycle,
        _at.tracker == row.tracker,
        _at.revision == row.revision,
    )
    return connection.execute(update(campaign_tracking).where(*where).values(dict(values))).rowcount > 0


def forget(connection: Connection, row: TrackingRow) -> None:
    """Delete a row of a tracker that the campaign no longer uses, unless it has a newer revision."""
    where = (
        _at.campaign_seq == row.campaign_seq,
        _at.cycle == row.cycle,
        _at.tracker == row.tracker,
        _at.revision == row.revision,
    )
    connection.execute(delete(campaign_tracking).where(*where))
