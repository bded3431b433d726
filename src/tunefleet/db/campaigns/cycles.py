"""Cycles of campaigns and their steps. A cycle changes only if it is still in the state that the caller read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, update

from tunefleet.db.tables.campaigns import campaign_cycles, campaign_log, campaign_steps, campaigns

_at = campaign_cycles.c
_step = campaign_steps.c


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
