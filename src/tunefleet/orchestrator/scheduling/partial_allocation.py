"""Elastic tasks wait until all nodes of their job have arrived, instead of starting with the first few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.fleet import clusters
from tunefleet.db.repositories import tasks
from tunefleet.placement import Requirement

# How long to wait for further workers of a job, after it got its nodes and after each worker. The nodes of one job
# start within seconds of each other, and nodes that a training run starts without stay idle until it ends.
GATHER_S: Final = 20.0


def gathered(
    connection: Connection, needs: Mapping[tuple[str, str], Requirement], now: float, patience_s: float
) -> dict[tuple[str, str], Requirement]:
    """Return the needs that may be scheduled now, without tasks whose job may still bring workers that they can use."""
    elastic = {key for key, need in needs.items() if need.nodes < need.nodes_max}
    if not elastic:
        return dict(needs)
    jobs = clusters.live(connection)
    rows = tasks.by_ids(connection, [job.task_id for job in jobs])
    arrivals = clusters.arrivals(connection, [job.key_id for job in jobs])
    early = set()
    for job in jobs:
        row = rows.get(job.task_id)
        key = None if row is None else (row.requirement_key, row.project)
        if key not in elastic:
            continue
        came = arrivals.get(job.key_id, [])
        if len(came) < needs[key].nodes_max and _more_may_come(job.running_at, came, now, patience_s):
            early.add(key)
    return {key: need for key, need in needs.items() if key not in early}


def _more_may_come(running_at: float | None, came: Sequence[float], now: float, patience_s: float) -> bool:
    # Workers may arrive before the poll that sees the job running; those of a requeued job are older than it.
    if running_at is None:
        return True
    most_s = patience_s / 2
    return now - running_at <= most_s and now - max([running_at, *came]) < min(GATHER_S, most_s)
