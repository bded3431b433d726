"""Data of placement: queued tasks in order, and failed offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, bindparam, delete, exists, func, insert, or_, select, text, update

from tunefleet.db.rows import TaskRow
from tunefleet.db.tables.core import cordons, tasks, void_offers

# Consecutive failed offers of one kind after which a worker gets no more of that kind for a while.
STRIKES: Final = 3

# Literals, not parameters: only then are the partial indexes used.
_QUEUED: Final = text("tasks.status = 'queued'")
_DELAYED: Final = text("tasks.status = 'queued' AND tasks.ready_at > 0")
_MERGING: Final = text("tasks.status = 'queued' AND tasks.merge_key IS NOT NULL")
_EXPIRING: Final = text("tasks.status = 'queued' AND tasks.queue_deadline IS NOT NULL")

# A loose index scan: one probe per distinct requirement, however many tasks are queued.
_GROUPS = text(
    """
    WITH RECURSIVE need(key) AS (
        SELECT min(requirement_key) FROM tasks WHERE status = 'queued'
        UNION ALL
        SELECT (SELECT min(requirement_key) FROM tasks WHERE status = 'queued' AND requirement_key > need.key)
        FROM need WHERE need.key IS NOT NULL
    )
    SELECT key FROM need WHERE key IS NOT NULL
    """
)
# The same for each distinct requirement and project; sorted like the index.
_QUEUES = text(
    """
    WITH RECURSIVE line(need, project) AS (
        SELECT
            (SELECT requirement_key FROM tasks WHERE status = 'queued'
             ORDER BY requirement_key, project LIMIT 1),
            (SELECT project FROM tasks WHERE status = 'queued'
             ORDER BY requirement_key, project LIMIT 1)
        UNION ALL
        SELECT
            (SELECT requirement_key FROM tasks
             WHERE status = 'queued' AND (requirement_key, project) > (line.need, line.project)
             ORDER BY requirement_key, project LIMIT 1),
            (SELECT project FROM tasks
             WHERE status = 'queued' AND (requirement_key, project) > (line.need, line.project)
             ORDER BY requirement_key, project LIMIT 1)
        FROM line WHERE line.need IS NOT NULL
    )
    SELECT need, project FROM line WHERE need IS NOT NULL
    """
)
_FIRST = (
    select(tasks)
    .where(
        _QUEUED,
        tasks.c.requirement_key == bindparam("key"),
        tasks.c.project == bindparam("project"),
        tasks.c.ready_at <= bindparam("now"),
    )
    .order_by(tasks.c.rank, tasks.c.seq)
    .limit(bindparam("count"))
    .offset(bindparam("skip"))
)
_READY = select(tasks.c.seq).where(
    _QUEUED,
    tasks.c.requirement_key == bindparam("key"),
    tasks.c.project == bindparam("project"),
    tasks.c.ready_at <= bindparam("now"),
)
_EQUAL = (
    select(tasks)
    .where(_MERGING, tasks.c.merge_key == bindparam("key"), tasks.c.ready_at <= bindparam("now"))
    .order_by(tasks.c.rank)
    .limit(bindparam("count"))
)
_TROUBLE = select(or_(exists(select(void_offers.c.task_id)), exists(select(cordons.c.kind))))


@dataclass(frozen=True, slots=True)
class VoidOffer:
    """A task that a worker was offered and did not accept."""

    task_id: str
    worker_id: str
    count: int
    until: float


@dataclass(frozen=True, slots=True)
class Cordon:
    """Failed offers of one kind of task to a worker; with enough strikes it gets no more until a time."""

    worker_id: str
    kind: str
    strikes: int
    until: float


def groups(connection: Connection) -> list[str]:
    """Return the requirement keys of queued tasks."""
    return list(connection.execute(_GROUPS).scalars())


def lines(connection: Connection) -> list[tuple[str, str]]:
    """Return the requirement keys of queued tasks, each with a project that has one."""
    return [(key, project) for key, project in connection.execute(_QUEUES).all()]


def first(
    connection: Connection, requirement_key: str, project: str, *, now: float, count: int, skip: int = 0
) -> list[TaskRow]:
    """Return a project's due tasks with one requirement, in queue order."""
    which = {"key": requirement_key, "project": project, "now": now, "count": count, "skip": skip}
    return [TaskRow._make(row) for row in connection.execute(_FIRST, which).all()]


def ahead(connection: Connection, row: TaskRow, keys: Sequence[str], now: float) -> int:
    """Return how many tasks of its project are ahead of a queued one."""
    at = tasks.c
    # The first condition uses the index; tasks of one submission may have the same rank.
    earlier = (at.rank <= row.rank) & ((at.rank < row.rank) | (at.seq < row.seq)) & (at.ready_at <= now)
    query = (
        select(func.count())
        .select_from(tasks)
        .where(_QUEUED, at.requirement_key.in_(keys), at.project == row.project, earlier)
    )
    return int(connection.execute(query).scalar_one())


def count_first(connection: Connection, requirement_key: str, project: str, *, now: float, limit: int) -> int:
    """Count a project's due tasks with one requirement, up to a limit."""
    mine = _READY.limit(limit).subquery()
    which = {"key": requirement_key, "project": project, "now": now}
    return int(connection.execute(select(func.count()).select_from(mine), which).scalar() or 0)


def equal(connection: Connection, merge_key: str, *, now: float, count: int) -> list[TaskRow]:
    """Return the due tasks that can run as one, in queue order."""
    return [TaskRow(*row) for row in connection.execute(_EQUAL, {"key": merge_key, "now": now, "count": count})]


def any_ready_between(connection: Connection, since: float, now: float) -> bool:
    """Return whether the backoff of a queued task ended in a time range."""
    query = select(tasks.c.seq).where(_DELAYED, tasks.c.ready_at > since, tasks.c.ready_at <= now).limit(1)
    return connection.execute(query).first() is not None


def expired(connection: Connection, now: float) -> list[TaskRow]:
    """Return the tasks whose queue timeout has passed."""
    return [TaskRow(*row) for row in connection.execute(select(tasks).where(_EXPIRING, tasks.c.queue_deadline <= now))]


def void_offers_of(connection: Connection, task_ids: Sequence[str]) -> list[VoidOffer]:
    """Return the failed offers of tasks."""
    query = select(void_offers).where(void_offers.c.task_id.in_(list(task_ids)))
    return [VoidOffer(*row) for row in connection.execute(query)]


def all_cordons(connection: Connection) -> list[Cordon]:
    """Return the strikes of all workers."""
    return [Cordon(*row) for row in connection.execute(select(cordons))]


def any_trouble(connection: Connection) -> bool:
    """Return whether there is any failed offer; usually there is none, and nothing to clear."""
    return bool(connection.execute(_TROUBLE).scalar())


def put_void_offer(connection: Connection, row: VoidOffer) -> None:
    """Store a failed offer."""
    where = (void_offers.c.task_id == row.task_id) & (void_offers.c.worker_id == row.worker_id)
    done = connection.execute(update(void_offers).where(where).values(count=row.count, until=row.until))
    if done.rowcount == 0:
        connection.execute(
            insert(void_offers).values(task_id=row.task_id, worker_id=row.worker_id, count=row.count, until=row.until)
        )


def put_cordon(connection: Connection, row: Cordon) -> None:
    """Store the strikes of a worker."""
    where = (cordons.c.worker_id == row.worker_id) & (cordons.c.kind == row.kind)
    done = connection.execute(update(cordons).where(where).values(strikes=row.strikes, until=row.until))
    if done.rowcount == 0:
        connection.execute(
            insert(cordons).values(worker_id=row.worker_id, kind=row.kind, strikes=row.strikes, until=row.until)
        )


def clear_cordons(connection: Connection, worker_id: str, *, kinds: Sequence[str] | None = None) -> None:
    """Clear the strikes of a worker: it accepted an offer, or restarted."""
    query = delete(cordons).where(cordons.c.worker_id == worker_id)
    connection.execute(query if kinds is None else query.where(cordons.c.kind.in_(list(kinds))))


def delete_of_tasks(connection: Connection, task_ids: Sequence[str]) -> None:
    """Delete the failed offers of tasks that are placed or deleted."""
    connection.execute(delete(void_offers).where(void_offers.c.task_id.in_(list(task_ids))))
