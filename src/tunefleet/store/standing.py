"""How many of what there is now: counts that an index answers, however many tasks a server has."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, func, select, text

from tunefleet.store.tables import attempts, tasks, workers

# Literals, not parameters: only then can the partial indexes answer.
_QUEUED: Final = text("tasks.status = 'queued'")
_SET_ASIDE: Final = text("tasks.status IN ('pending', 'paused')")
_OPEN: Final = text("attempts.state IN ('offered', 'accepted')")
_BY_NEED = select(tasks.c.requirement_key, func.count()).where(_QUEUED).group_by(tasks.c.requirement_key)
_ASIDE = select(tasks.c.status, tasks.c.kind, func.count()).where(_SET_ASIDE).group_by(tasks.c.status, tasks.c.kind)
_HELD = select(attempts.c.state, attempts.c.kind, func.count()).where(_OPEN).group_by(attempts.c.state, attempts.c.kind)
_WORKERS = select(workers.c.status, func.count()).group_by(workers.c.status)


def queued_by_need(connection: Connection) -> list[tuple[str, int]]:
    """Return how many tasks wait for a worker, by the key of their need; most first."""
    found = [(key, count) for key, count in connection.execute(_BY_NEED)]
    return sorted(found, key=lambda each: -each[1])


def set_aside(connection: Connection) -> list[tuple[str, str, int]]:
    """Return status, kind and number of the tasks that wait for others, or are paused."""
    return [tuple(row) for row in connection.execute(_ASIDE)]


def held(connection: Connection) -> list[tuple[str, str, int]]:
    """Return state, kind and number of the attempts that workers are offered or hold."""
    return [tuple(row) for row in connection.execute(_HELD)]


def workers_by_status(connection: Connection) -> dict[str, int]:
    """Return how many workers have each status."""
    return {status: count for status, count in connection.execute(_WORKERS)}


def oldest_queued(connection: Connection, requirement_keys: list[str]) -> float | None:
    """Return since when the first task in each of some queues waits, at the earliest; null if none waits."""
    found = None
    for key in requirement_keys:
        query = select(tasks.c.queued_at).where(_QUEUED, tasks.c.requirement_key == key).order_by(tasks.c.rank)
        at = connection.execute(query.limit(1)).scalar()
        if at is not None and (found is None or at < found):
            found = at
    return found
