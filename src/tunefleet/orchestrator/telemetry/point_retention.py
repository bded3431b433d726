"""Retention of points: the newest ones are complete, older ones are thinned evenly.

A launch that reports for a week has millions of points, and a chart shows two thousand. Points are thinned whenever a
quarter of the limit has arrived, so that the state of a launch follows from its cursor alone, on each server.
"""

from __future__ import annotations

from tunefleet.db import Connection
from tunefleet.db.repositories import events, journal, tasks
from tunefleet.db.rows import LaunchRow


def times(cursor: int, limit: int) -> int:
    """Return how often the points of a launch were thinned."""
    return max(0, cursor // (limit // 4) - 3)


def thin(connection: Connection, launch: LaunchRow, cursor: int, limit: int, now: float) -> int:
    """Thin the points of a launch if due, and report it with an event the first time.

    Returns:
        The number of characters that were deleted.
    """
    before = times(launch.cursor, limit)
    if times(cursor, limit) == before:
        return 0
    # From the beginning: the limit may have been different when the older points arrived.
    gone = journal.thin(connection, launch, before_seq=cursor - limit // 4, apart=_apart(cursor, limit))
    if not before:
        row = tasks.by_ids(connection, [launch.task_id])[launch.task_id]
        message = (
            f"Points of {launch.launch} are thinned from now on: the limit for a series is {limit:,} points "
            "(TUNEFLEET_SERIES_POINTS); the newest are complete, older ones are spread evenly."
        )
        data = {"name": "metrics.thinned", "message": message, "level": "info"}
        events.append(connection, [events.of_task(row, "task.message", now, data)])
    return gone


def _apart(cursor: int, limit: int) -> int:
    """Return the stride: one of this many points stays, so that they take half of the limit."""
    apart = 2
    while cursor > apart * (limit // 2):
        apart *= 2
    return apart
