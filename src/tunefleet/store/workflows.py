"""Workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from tunefleet.store.rows import WorkflowRow
from tunefleet.store.tables import workflows


def insert_one(connection: Connection, row: Mapping[str, Any]) -> None:
    """Store a workflow; the row lacks `seq` only."""
    connection.execute(insert(workflows), [dict(row)])


def by_idempotency_key(connection: Connection, *, project: str, owner: str, key: str) -> WorkflowRow | None:
    """Return the workflow that an owner submitted with this key."""
    query = select(workflows).where(
        workflows.c.project == project, workflows.c.owner == owner, workflows.c.idempotency_key == key
    )
    row = connection.execute(query).first()
    return WorkflowRow(*row) if row else None


def by_ids(connection: Connection, ids: Sequence[str]) -> dict[str, WorkflowRow]:
    """Return workflows by id; unknown ids are left out."""
    rows = (WorkflowRow(*row) for row in connection.execute(select(workflows).where(workflows.c.id.in_(list(ids)))))
    return {row.id: row for row in rows}


def by_prefix(connection: Connection, prefix: str, *, project: str, limit: int = 2) -> list[WorkflowRow]:
    """Return workflows whose id starts so."""
    query = (
        select(workflows)
        .where(workflows.c.project == project, workflows.c.id >= prefix, workflows.c.id < prefix + "\uffff")
        .order_by(workflows.c.id)
        .limit(limit)
    )
    return [WorkflowRow(*row) for row in connection.execute(query)]


def page(
    connection: Connection, *, project: str, limit: int, before: int | None, filters: Mapping[str, str | None]
) -> list[WorkflowRow]:
    """Return workflows, newest first.

    Args:
        connection: To read with.
        project: Whose workflows.
        limit: How many at most.
        before: Only workflows older than the one with this `seq`.
        filters: Column → value; a null value does not filter.
    """
    query = select(workflows).where(workflows.c.project == project).order_by(workflows.c.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(workflows.c.seq < before)
    for name, value in filters.items():
        if value is not None:
            query = query.where(workflows.c[name].in_(value.split(",")))
    return [WorkflowRow(*row) for row in connection.execute(query)]


def ended_before(connection: Connection, at: float, *, project: str) -> list[str]:
    """Return the ids of workflows that ended before a time, oldest first."""
    query = (
        select(workflows.c.id)
        .where(workflows.c.project == project, workflows.c.finished_at < at)
        .order_by(workflows.c.seq)
    )
    return list(connection.execute(query).scalars())


def delete_rows(connection: Connection, ids: Sequence[str]) -> None:
    """Forget workflows."""
    connection.execute(delete(workflows).where(workflows.c.id.in_(list(ids))))
