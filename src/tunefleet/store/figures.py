"""Sums over all tasks that a server has."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Connection, case, func, select

from tunefleet.store.rows import TaskRow
from tunefleet.store.tables import tasks

_RUN: Final = tasks.c.started_at.is_not(None) & tasks.c.queued_at.is_not(None)


class KindRow(NamedTuple):
    """Tasks of one kind with one status; sums are in seconds, over those that have run."""

    kind: str
    status: str
    how_many: int
    again: int
    ran: int
    queue_s: float
    execution_s: float
    total_s: float


def by_kind(connection: Connection, project: str) -> list[KindRow]:
    """Return the sums of a project's tasks by kind and status; reads every task once."""
    ended = func.coalesce(tasks.c.finished_at, tasks.c.started_at)
    query = select(
        tasks.c.kind,
        tasks.c.status,
        func.count(),
        func.sum(case((tasks.c.attempts > 1, tasks.c.attempts - 1), else_=0)),
        func.sum(case((_RUN, 1), else_=0)),
        func.sum(case((_RUN, tasks.c.started_at - tasks.c.queued_at), else_=0.0)),
        func.sum(case((_RUN, ended - tasks.c.started_at), else_=0.0)),
        func.sum(case((_RUN, ended - tasks.c.created_at), else_=0.0)),
    ).group_by(tasks.c.kind, tasks.c.status)
    query = query.where(tasks.c.project == project)
    return [KindRow(*row) for row in connection.execute(query)]


def newest_ended(connection: Connection, project: str, *, limit: int) -> list[TaskRow]:
    """Return the newest of a project's tasks that have ended, by when they were made."""
    query = (
        select(tasks)
        .where(tasks.c.project == project, tasks.c.finished_at.is_not(None))
        .order_by(tasks.c.seq.desc())
        .limit(limit)
    )
    return [TaskRow(*row) for row in connection.execute(query)]
