"""Costs of campaigns: an append-only ledger without duplicates."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, func, insert, select

from tunefleet.db.tables.campaigns import campaign_spend

_at = campaign_spend.c


class SpendRow(NamedTuple):
    """An entry; it has a `seq` once it is stored."""

    campaign_seq: int
    cycle: int
    what: str
    key: str
    amount: float
    at: float
    seq: int = 0


def enter(connection: Connection, row: SpendRow) -> bool:
    """Record a cost; false if it was recorded before."""
    known = select(_at.seq).where(_at.campaign_seq == row.campaign_seq, _at.what == row.what, _at.key == row.key)
    if connection.execute(known).first() is not None:
        return False
    values = row._asdict()
    del values["seq"]
    connection.execute(insert(campaign_spend).values(values))
    return True


def total(connection: Connection, seq: int, *, but: str | None = None) -> float:
    """Return the costs of a campaign, without entries of the key `but`."""
    query = select(func.coalesce(func.sum(_at.amount), 0.0)).where(_at.campaign_seq == seq)
    if but is not None:
        query = query.where(_at.key != but)
    return float(connection.execute(query).scalar_one())


def times(connection: Connection, seq: int, what: str, *, after: float, but: str | None = None) -> list[float]:
    """Return when costs were recorded, oldest first."""
    query = select(_at.at).where(_at.campaign_seq == seq, _at.what == what, _at.at > after).order_by(_at.at)
    if but is not None:
        query = query.where(_at.key != but)
    return list(connection.execute(query).scalars())


def of_cycles(connection: Connection, seq: int) -> dict[int, float]:
    """Return the cost of each cycle of a campaign; cycles without cost are omitted."""
    query = select(_at.cycle, func.sum(_at.amount)).where(_at.campaign_seq == seq).group_by(_at.cycle)
    return {cycle: float(amount) for cycle, amount in connection.execute(query)}
