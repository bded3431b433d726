"""Tasks with a job that may bring more nodes yet: they begin with all that come together, not with the first few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.fleet import clusters
from tunefleet.db.repositories import tasks
from tunefleet.placement import Requirement

# So long further workers of a job are waited for, after it got its nodes and after each that has come.
#
# The nodes of one job begin within seconds of each other, and those that a training leaves out idle until it is over.
#
GATHER_S: Final = 20.0


def gathered(
    connection: Connection, needs: Mapping[tuple[str, str], Requirement], now: float, patience_s: float
) -> dict[tuple[str, str], Requirement]:
    """Return what may be placed now: all but tasks whose job has not brought as many workers as they can use."""
    elastic = {line for line, need in needs.items() if need.nodes < need.nodes_max}
    if not elastic:
        return dict(needs)
    jobs = clusters.live(connection)
    rows = tasks.by_ids(connection, [job.task_id for job in jobs])
    arrivals = clusters.arrivals(connection, [job.key_id for job in jobs])
    early = set()
    for job in jobs:
        row = rows.get(job.task_id)
        line = None if row is None else (row.requirement_key, row.project)
        if line not in elastic:
            continue
        came = arrivals.get(job.key_id, [])
        if len(came) < needs[line].nodes_max and _more_may_come(job.running_at, came, now, patience_s):
            early.add(line)
    return {line: need for line, need in needs.items() if line not in early}


def _more_may_come(running_at: float | None, came: Sequence[float], now: float, patience_s: float) -> bool:
    # The look that sees the job running comes after its first workers; those of one that was requeued are known of old.
    if running_at is None:
        return True
    most_s = patience_s / 2
    return now - running_at <= most_s and now - max([running_at, *came]) < min(GATHER_S, most_s)
