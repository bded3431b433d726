"""Cycles of campaigns, their steps, and their outbox to trackers. A cycle changes only from the state that was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, update

from tunefleet.db.tables.campaigns import campaign_cycles, campaign_log, campaign_steps, campaigns
from tunefleet.db.tables.operations import campaign_tracking

_at = campaign_cycles.c
_step = campaign_steps.c
_tracking = campaign_tracking.c


class CycleRow(NamedTuple):
    """A cycle; `spec` and `activity` are JSON, `to_cancel` 0 or 1."""

    campaign_seq: int
    number: int
    position: int
    status: str
    step: str
    tries: int
    not_before: float
    waiting: str | None
    error: str | None
    retried: int
    orders: int
    to_cancel: int
    spec: str
    opened_at: float
    finished_at: float | None
    activity: str | None = None


class StepRow(NamedTuple):
    """A step of a cycle; `intent` and `outcome` are JSON."""

    campaign_seq: int
    cycle: int
    step: str
    status: str
    intent: str | None
    outcome: str | None
    error: str | None
    begun_at: float
    finished_at: float | None


def insert_one(connection: Connection, row: CycleRow) -> None:
    """Store a cycle; its number is unique in the campaign."""
    connection.execute(insert(campaign_cycles).values(row._asdict()))


def get(connection: Connection, seq: int, number: int) -> CycleRow | None:
    """Return a cycle."""
    query = select(campaign_cycles).where(_at.campaign_seq == seq, _at.number == number)
    row = connection.execute(query).first()
    return CycleRow(*row) if row else None


def page(connection: Connection, seq: int, *, limit: int, before: int | None = None) -> list[CycleRow]:
    """Return cycles of a campaign, newest first."""
    query = select(campaign_cycles).where(_at.campaign_seq == seq).order_by(_at.number.desc()).limit(limit)
    if before is not None:
        query = query.where(_at.number < before)
    return [CycleRow(*row) for row in connection.execute(query)]


def running(connection: Connection, seq: int) -> list[CycleRow]:
    """Return the running cycles of a campaign, oldest first."""
    query = select(campaign_cycles).where(_at.campaign_seq == seq, _at.status == "running").order_by(_at.number)
    return [CycleRow(*row) for row in connection.execute(query)]


def running_in(connection: Connection, project: str) -> list[tuple[str, str, int, CycleRow]]:
    """Return a project's running cycles: campaign id and name, newest log line, and the cycle."""
    newest = select(func.max(campaign_log.c.seq)).where(campaign_log.c.campaign_seq == campaigns.c.seq)
    query = (
        select(campaigns.c.id, campaigns.c.name, func.coalesce(newest.scalar_subquery(), 0), campaign_cycles)
        .join(campaigns, campaigns.c.seq == _at.campaign_seq)
        .where(campaigns.c.project == project, _at.status == "running")
        .order_by(_at.campaign_seq, _at.number)
    )
    return [(id_, name, line, CycleRow(*row)) for id_, name, line, *row in connection.execute(query)]


def to_cancel(connection: Connection, now: float) -> list[CycleRow]:
    """Return the cycles of all campaigns whose task at the provider must be cancelled by now, in Unix time."""
    query = (
        select(campaign_cycles).where(_at.to_cancel == 1, _at.not_before <= now).order_by(_at.campaign_seq, _at.number)
    )
    return [CycleRow(*row) for row in connection.execute(query)]


def change(connection: Connection, row: CycleRow, values: Mapping[str, Any]) -> CycleRow | None:
    """Change columns of a cycle, if status, step and tries are still those that the caller read."""
    where = (
        _at.campaign_seq == row.campaign_seq,
        _at.number == row.number,
        _at.status == row.status,
        _at.step == row.step,
        _at.tries == row.tries,
        _at.retried == row.retried,
    )
    done = connection.execute(update(campaign_cycles).where(*where).values(dict(values))).rowcount
    return row._replace(**values) if done else None


def steps(connection: Connection, seq: int, numbers: Sequence[int]) -> list[StepRow]:
    """Return the started steps of some cycles of a campaign."""
    query = select(campaign_steps).where(_step.campaign_seq == seq, _step.cycle.in_(list(numbers)))
    return [StepRow(*row) for row in connection.execute(query)]


def put_step(connection: Connection, row: StepRow) -> None:
    """Store a step, new or changed."""
    drop_steps(connection, row.campaign_seq, row.cycle, [row.step])
    connection.execute(insert(campaign_steps).values(row._asdict()))


def drop_steps(connection: Connection, seq: int, number: int, names: Sequence[str]) -> None:
    """Delete steps of a cycle that repeats them."""
    here = (_step.campaign_seq == seq, _step.cycle == number, _step.step.in_(list(names)))
    connection.execute(delete(campaign_steps).where(*here))


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


def enter_tracking(connection: Connection, seq: int, cycle: int, tracker: str, now: float) -> None:
    """Queue a cycle for a tracker; a cycle that was queued before gets a new revision."""
    here = (_tracking.campaign_seq == seq, _tracking.cycle == cycle, _tracking.tracker == tracker)
    known = connection.execute(select(_tracking.revision).where(*here)).scalar()
    connection.execute(delete(campaign_tracking).where(*here))
    revision = 0 if known is None else known + 1
    row = TrackingRow(seq, cycle, tracker, revision, now, 0, 0.0, None, None, None)
    connection.execute(insert(campaign_tracking).values(row._asdict()))


def undelivered(connection: Connection, now: float, *, limit: int) -> list[TrackingRow]:
    """Return the rows to deliver by now, of all campaigns, longest waiting first."""
    query = select(campaign_tracking).where(_tracking.told_at.is_(None), _tracking.not_before <= now)
    query = query.order_by(
        _tracking.not_before, _tracking.recorded_at, _tracking.campaign_seq, _tracking.cycle, _tracking.tracker
    ).limit(limit)
    return [TrackingRow(*row) for row in connection.execute(query)]


def any_undelivered(connection: Connection) -> bool:
    """Return whether any row is undelivered."""
    return connection.execute(select(_tracking.cycle).where(_tracking.told_at.is_(None)).limit(1)).first() is not None


def next_delivery_at(connection: Connection, after: float) -> float | None:
    """Return when the next row is due after a time; `None` if there is none."""
    query = select(func.min(_tracking.not_before)).where(_tracking.told_at.is_(None), _tracking.not_before > after)
    return connection.execute(query).scalar()


def tracking_of(connection: Connection, seq: int, numbers: Sequence[int]) -> list[TrackingRow]:
    """Return the rows of some cycles of a campaign."""
    query = select(campaign_tracking).where(_tracking.campaign_seq == seq, _tracking.cycle.in_(list(numbers)))
    return [TrackingRow(*row) for row in connection.execute(query.order_by(_tracking.cycle, _tracking.tracker))]


def change_tracking(connection: Connection, row: TrackingRow, values: Mapping[str, Any]) -> bool:
    """Change columns of a row; false if it has a newer revision."""
    where = (
        _tracking.campaign_seq == row.campaign_seq,
        _tracking.cycle == row.cycle,
        _tracking.tracker == row.tracker,
        _tracking.revision == row.revision,
    )
    return connection.execute(update(campaign_tracking).where(*where).values(dict(values))).rowcount > 0


def forget_tracking(connection: Connection, row: TrackingRow) -> None:
    """Delete a row of a tracker that the campaign no longer uses, unless it has a newer revision."""
    where = (
        _tracking.campaign_seq == row.campaign_seq,
        _tracking.cycle == row.cycle,
        _tracking.tracker == row.tracker,
        _tracking.revision == row.revision,
    )
    connection.execute(delete(campaign_tracking).where(*where))
