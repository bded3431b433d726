"""Campaigns, their claims (taken by compare-and-swap, ended with the lease), their log lines and their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, case, delete, func, insert, or_, select, update

from tunefleet.db import project_queries
from tunefleet.db.tables.campaigns import campaign_cycles, campaign_log, campaign_spend, campaigns
from tunefleet.db.tables.operations import campaign_tracking

_at = campaigns.c
_BY_SEQ: Final = select(campaigns).where(_at.seq == bindparam("seq"))
_BY_ID: Final = select(campaigns).where(_at.id == bindparam("id"))
_ACTIVE: Final = "active"
MAX_LINES: Final = 10_000
_SPARE: Final = 500
"""Old lines are deleted once per this many new lines of all campaigns."""
_spend = campaign_spend.c


class CampaignRow(NamedTuple):
    """A campaign; `spec` is JSON, `by_config` 0 or 1."""

    seq: int
    id: str
    project: str
    name: str
    owner: str
    status: str
    reason: str | None
    by_config: int
    spec: str
    cycles: int
    next_at: float
    failures: int
    holder: str | None
    lease_until: float
    created_at: float
    changed_at: float


def insert_one(connection: Connection, values: Mapping[str, Any]) -> CampaignRow:
    """Store a campaign; the database assigns its `seq`."""
    seq = connection.execute(insert(campaigns).returning(_at.seq), dict(values)).scalar_one()
    row = by_seq(connection, seq)
    assert row is not None, "it was just stored"
    return row


def by_seq(connection: Connection, seq: int) -> CampaignRow | None:
    """Return a campaign by its number."""
    row = connection.execute(_BY_SEQ, {"seq": seq}).first()
    return CampaignRow(*row) if row else None


def by_id(connection: Connection, id_: str, *, lock: bool = False) -> CampaignRow | None:
    """Return a campaign by its id."""
    row = connection.execute(_BY_ID.with_for_update() if lock else _BY_ID, {"id": id_}).first()
    return CampaignRow(*row) if row else None


def named(connection: Connection, project: str, name: str) -> list[CampaignRow]:
    """Return the campaigns of a project with a name, at most one per owner."""
    query = select(campaigns).where(_at.project == project, _at.name == name).order_by(_at.seq)
    return [CampaignRow(*row) for row in connection.execute(query)]


def page(
    connection: Connection,
    *,
    project: str,
    limit: int,
    before: int | None = None,
    owner: str | None = None,
    statuses: Sequence[str] | None = None,
) -> list[CampaignRow]:
    """Return campaigns, newest first."""
    query = project_queries.newest_first(
        campaigns, project=project, limit=limit, before=before, owner=owner, statuses=statuses
    )
    return [CampaignRow(*row) for row in connection.execute(query)]


def change(connection: Connection, row: CampaignRow, values: Mapping[str, Any]) -> CampaignRow:
    """Change columns of a campaign, and return the changed row."""
    connection.execute(update(campaigns).where(_at.seq == row.seq).values(dict(values)))
    return row._replace(**values)


def claim(connection: Connection, row: CampaignRow, *, holder: str, now: float, until: float) -> CampaignRow | None:
    """Claim an active campaign that no other process holds."""
    free = or_(_at.holder.is_(None), _at.holder == holder, _at.lease_until <= now)
    where = (_at.seq == row.seq, _at.status == _ACTIVE, free)
    changes: dict[str, Any] = {"holder": holder, "lease_until": until}
    done = connection.execute(update(campaigns).where(*where).values(changes)).rowcount
    return row._replace(**changes) if done else None


def renew(connection: Connection, id_: str, *, holder: str, until: float) -> bool:
    """Extend the lease of a campaign; false if another process has it now."""
    where = (_at.id == id_, _at.holder == holder)
    return connection.execute(update(campaigns).where(*where).values(lease_until=until)).rowcount > 0


def release(connection: Connection, id_: str, *, holder: str) -> bool:
    """Release a campaign; false if another process has it now."""
    where = (_at.id == id_, _at.holder == holder)
    return connection.execute(update(campaigns).where(*where).values(holder=None, lease_until=0.0)).rowcount > 0


def release_all(connection: Connection) -> int:
    """Release every campaign; returns how many were held."""
    return connection.execute(
        update(campaigns).where(_at.holder.is_not(None)).values(holder=None, lease_until=0.0)
    ).rowcount


def set_back(connection: Connection, now: float, by: float) -> None:
    """Shorten all waiting times after the clock was set back."""
    for column in (_at.next_at, campaign_cycles.c.not_before, campaign_tracking.c.not_before):
        earlier = case((column - by > now, column - by), else_=now)
        connection.execute(update(column.table).where(column > now).values({column.name: earlier}))


def due(connection: Connection) -> dict[str, float]:
    """Return when each active campaign is due next, as Unix time by id.

    That is its next cycle, unless its newest one is running, or a step of a running cycle; not before the lease ends.
    """
    cycle = campaign_cycles.c
    query = (
        select(_at.id, _at.next_at, _at.holder, _at.lease_until, _at.cycles, func.min(cycle.not_before))
        .add_columns(func.max(cycle.number))
        .outerjoin(campaign_cycles, (cycle.campaign_seq == _at.seq) & (cycle.status == "running"))
        .where(_at.status == _ACTIVE)
        .group_by(_at.seq)
    )
    found: dict[str, float] = {}
    for id_, next_at, holder, lease_until, opened, step_at, newest in connection.execute(query):
        wanted = [] if newest is not None and newest == opened - 1 else [next_at]
        wanted += [] if step_at is None else [step_at]
        found[id_] = max(min(wanted), lease_until if holder is not None else 0.0)
    return found


_log_at = campaign_log.c


class LineRow(NamedTuple):
    """A log line; it has a `seq` once it is stored."""

    campaign_seq: int
    cycle: int | None
    step: str | None
    level: str
    text: str
    at: float
    seq: int = 0


_LINES: Final = select(*(_log_at[name] for name in LineRow._fields))


def add(connection: Connection, row: LineRow, *, keep: int = MAX_LINES) -> None:
    """Append a line; occasionally deletes the oldest lines of each campaign, so that about `keep` remain."""
    values = row._asdict()
    del values["seq"]
    seq = connection.execute(insert(campaign_log).returning(_log_at.seq), values).scalar_one()
    if seq % _SPARE == 0:
        for campaign_seq in connection.execute(select(_log_at.campaign_seq).distinct()).scalars().all():
            _forget(connection, campaign_seq, keep)


def after(connection: Connection, seq: int, line: int, *, limit: int, cycle: int | None = None) -> list[LineRow]:
    """Return the lines after one, oldest first.

    Args:
        line: The `seq` of the previous line; 0 for none.
    """
    query = _LINES.where(_log_at.campaign_seq == seq, _log_at.seq > line).order_by(_log_at.seq).limit(limit)
    if cycle is not None:
        query = query.where(_log_at.cycle == cycle)
    return [LineRow(*row) for row in connection.execute(query)]


def tail(connection: Connection, seq: int, *, limit: int, cycle: int | None = None) -> list[LineRow]:
    """Return the newest lines, oldest first."""
    query = _LINES.where(_log_at.campaign_seq == seq).order_by(_log_at.seq.desc()).limit(limit)
    if cycle is not None:
        query = query.where(_log_at.cycle == cycle)
    return [LineRow(*row) for row in connection.execute(query)][::-1]


def newest_at(connection: Connection) -> float | None:
    """Return the Unix time of the newest line of all campaigns; `None` if there is none."""
    return connection.execute(select(_log_at.at).order_by(_log_at.seq.desc()).limit(1)).scalar()


def _forget(connection: Connection, seq: int, keep: int) -> None:
    newest = select(_log_at.seq).where(_log_at.campaign_seq == seq).order_by(_log_at.seq.desc()).offset(keep).limit(1)
    last = connection.execute(newest).scalar()
    if last is not None:
        connection.execute(delete(campaign_log).where(_log_at.campaign_seq == seq, _log_at.seq <= last))


class SpendRow(NamedTuple):
    """An entry; it has a `seq` once it is stored."""

    campaign_seq: int
    cycle: int
    what: str
    key: str
    amount: float
    at: float
    seq: int = 0


def enter_spend(connection: Connection, row: SpendRow) -> bool:
    """Record a cost; false if it was recorded before."""
    known = select(_spend.seq).where(
        _spend.campaign_seq == row.campaign_seq, _spend.what == row.what, _spend.key == row.key
    )
    if connection.execute(known).first() is not None:
        return False
    values = row._asdict()
    del values["seq"]
    connection.execute(insert(campaign_spend).values(values))
    return True


def total_spend(connection: Connection, seq: int, *, but: str | None = None) -> float:
    """Return the costs of a campaign, without entries of the key `but`."""
    query = select(func.coalesce(func.sum(_spend.amount), 0.0)).where(_spend.campaign_seq == seq)
    if but is not None:
        query = query.where(_spend.key != but)
    return float(connection.execute(query).scalar_one())


def spend_times(connection: Connection, seq: int, what: str, *, after: float, but: str | None = None) -> list[float]:
    """Return when costs were recorded, oldest first."""
    query = (
        select(_spend.at).where(_spend.campaign_seq == seq, _spend.what == what, _spend.at > after).order_by(_spend.at)
    )
    if but is not None:
        query = query.where(_spend.key != but)
    return list(connection.execute(query).scalars())


def spend_of_cycles(connection: Connection, seq: int) -> dict[int, float]:
    """Return the cost of each cycle of a campaign; cycles without cost are omitted."""
    query = select(_spend.cycle, func.sum(_spend.amount)).where(_spend.campaign_seq == seq).group_by(_spend.cycle)
    return {cycle: float(amount) for cycle, amount in connection.execute(query)}
