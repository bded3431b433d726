"""How many points of a launch are kept: the newest as they came, the older ones evenly spread over the run.

A launch that reports for a week has millions of points, and a chart shows two thousand. A server thins each time that a
quarter of the limit has come; so how far a launch is thinned follows from its cursor alone, on each server.
"""

from __future__ import annotations

from tunefleet.db import Connection
from tunefleet.db.repositories import events, journal, tasks
from tunefleet.db.rows import LaunchRow


def times(cursor: int, limit: int) -> int:
    """Return how often the points of a launch have been thinned."""
    return max(0, cursor // (limit // 4) - 3)


def thin(connection: Connection, launch: LaunchRow, cursor: int, limit: int, now: float) -> int:
    """Thin the points of a launch if it is time for that; the first time, append an event that says so."""
    before = times(launch.cursor, limit)
    if times(cursor, limit) == before:
        return 0
    # From the beginning: the limit may have been another one when its older points came.
    gone = journal.thin(connection, launch, before_seq=cursor - limit // 4, apart=_apart(cursor, limit))
    if not before:
        row = tasks.by_ids(connection, [launch.task_id])[launch.task_id]
        message = (
            f"Points of {launch.launch} are thinned from now on: the server keeps {limit:,} of a series "
            "(TUNEFLEET_SERIES_POINTS), the newest as they came, and older ones evenly spread."
        )
        data = {"name": "metrics.thinned", "message": message, "level": "info"}
        events.append(connection, [events.of_task(row, "task.message", now, data)])
    return gone


def _apart(cursor: int, limit: int) -> int:
    """Return of how many records' points one stays, so that they take half of the limit."""
    apart = 2
    while cursor > apart * (limit // 2):
        apart *= 2
    return apart
