"""Pending reasons of tasks that get their nodes from an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunefleet.db import Connection
from tunefleet.db.fleet import clusters
from tunefleet.db.fleet.clusters import ClusterJobRow
from tunefleet.db.rows import TaskRow


def nodes(connection: Connection, rows: Sequence[TaskRow], absent: Mapping[str, str], most: int) -> dict[str, str]:
    """Return why queued tasks wait for an engine, by task id; tasks without an engine are left out."""
    jobs = [row for row in rows if row.slot_class == "job"]
    engines = clusters.engines_of(connection, [row.seq for row in jobs])
    if not engines:
        return {}
    newest = clusters.newest(connection, list(engines))
    when = _when(clusters.count_live(connection), most)
    return {row.id: _why(engines[row.seq], newest.get(row.seq), absent, when) for row in jobs if row.seq in engines}


def _when(out: int, most: int) -> str:
    """Return when nodes will be requested for a task without a job."""
    if out < most:
        return "soon"
    jobs = "the open job" if out == 1 else f"one of the {out} open jobs"
    return f"when {jobs} has ended (TUNEFLEET_NODES_JOBS is {most})"


def _why(engine: str, job: ClusterJobRow | None, absent: Mapping[str, str], when: str) -> str:
    if engine in absent:
        return f"waiting: {absent[engine]}."
    told = (job.told or "").rstrip(".") if job is not None else ""
    if job is None or job.state == "ended":
        last = f" The last job ended: {told}." if told else ""
        return f"waiting: nodes of {engine} are requested {when}.{last}"
    number = job.job_id or job.name
    match job.state:
        case "submitting":
            return f"waiting: requesting nodes of {engine}{f' ({told})' if told else ''}."
        case "waiting":
            return f"waiting: job {number} of {engine} has no nodes yet ({told})."
        case "leaving":
            return f"waiting: job {number} of {engine} is ending, then nodes are requested again."
    return f"waiting: job {number} of {engine} has its nodes; their workers are starting."
