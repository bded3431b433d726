"""Snapshot of tasks that name an engine, their cluster jobs, and the workers on the jobs' nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tunefleet.db import Connection
from tunefleet.db.fleet import clusters
from tunefleet.db.fleet.clusters import ClusterJobRow
from tunefleet.db.repositories import tasks
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.clusters.policy import JobWorkers
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.placement import Requirement, WorkerState, lacks
from tunefleet.placement.gangs import largest


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Cluster jobs with their tasks and workers, and the tasks that need a job."""

    jobs: tuple[ClusterJobRow, ...]
    statuses: Mapping[str, str]
    workers: Mapping[str, JobWorkers]
    waiting: tuple[tuple[TaskRow, str], ...]
    fresh: frozenset[str]


def take(connection: Connection, fleet: FleetSnapshot, *, engines: Collection[str], most: int) -> ClusterSnapshot:
    """Load all jobs with tasks and workers, and the tasks that need a job, up to `most` jobs in total."""
    jobs = clusters.live(connection)
    rows = tasks.by_ids(connection, [job.task_id for job in jobs])
    held = quotas.QuotaChecks(connection, fleet.now)
    waiting = _next(connection, fleet, held, engines, [rows.get(job.task_id) for job in jobs], most)
    if not jobs:
        return ClusterSnapshot((), {}, {}, waiting, frozenset())
    by_key = clusters.workers_by_key(connection, [job.key_id for job in jobs])
    ids = {job.name: by_key.get(job.key_id, []) for job in jobs}
    all_ids = [id_ for each in ids.values() for id_ in each]
    took, online = clusters.served(connection, all_ids), clusters.online(connection, all_ids)
    fresh = frozenset(job.name for job in jobs if not job.used and took.keys() & set(ids[job.name]))
    states = {state.id: state for state in cluster_state.states(connection, fleet)} if by_key else {}
    needs = cluster_state.needs(connection, [row.requirement_key for row in rows.values()])
    workers = {}
    for job in jobs:
        present = [states[id_] for id_ in ids[job.name] if id_ in states and states[id_].present]
        of_job = _job_workers(rows.get(job.task_id), present, needs, held, fleet.now)
        ends = [ended for id_ in ids[job.name] if (ended := took.get(id_)) is not None]
        workers[job.name] = replace(of_job, online=len(online & set(ids[job.name])), over_at=max(ends, default=None))
    found = tuple(job._replace(used=1) if job.name in fresh else job for job in jobs)
    return ClusterSnapshot(found, {row.id: row.status for row in rows.values()}, workers, waiting, fresh)


def _next(
    connection: Connection,
    fleet: FleetSnapshot,
    held: quotas.QuotaChecks,
    engines: Collection[str],
    served: Sequence[TaskRow | None],
    most: int,
) -> tuple[tuple[TaskRow, str], ...]:
    """Choose the tasks that get a job next: in queue order, and no more of a project than its quota allows."""
    capacity = most - len(served)
    if capacity <= 0:
        return ()
    # Tasks whose nodes are already requested will run next, but quotas do not count them before they run.
    asked = Counter(row.project for row in served if row is not None and row.status == TaskStatus.QUEUED)
    capacitys: dict[str, int | None] = {}
    chosen: list[tuple[TaskRow, str]] = []
    for row, engine in clusters.waiting(connection, engines, now=fleet.now):
        project = row.project
        if project not in capacitys:
            capacitys[project] = held.room(project)
        may = capacitys[project]
        full = may is not None and asked[project] >= may
        if (
            full
            or held.why(project, cluster_state.needs(connection, [row.requirement_key])[row.requirement_key])
            is not None
        ):
            continue
        asked[project] += 1
        chosen.append((row, engine))
        if len(chosen) == capacity:
            break
    return tuple(chosen)


def _job_workers(
    task: TaskRow | None,
    present: list[WorkerState],
    needs: Mapping[str, Requirement],
    held: quotas.QuotaChecks,
    now: float,
) -> JobWorkers:
    ids = tuple(state.id for state in present)
    if task is None or task.status != TaskStatus.QUEUED:
        return JobWorkers(ids)
    need = cluster_state.with_project(needs[task.requirement_key], task.project)
    return JobWorkers(
        ids,
        _hindrance(need, present),
        complete=len(present) >= need.nodes_max,
        held="it waits for its retry" if task.ready_at > now else held.why(task.project, need),
    )


def _hindrance(need: Requirement, workers: Sequence[WorkerState]) -> str | None:
    """Return why a task can never run on the nodes of a job; None if it can, or if nodes are still missing.

    Only `need.nodes` of them have to fit.
    """
    if len(workers) < need.nodes:
        return None
    missing = {state.id: lack for state in workers if (lack := lacks(need, state)) is not None}
    able = [state for state in workers if state.id not in missing]
    if len(able) < need.nodes:
        return "; ".join(f"the node {_name(state)} {missing[state.id]}" for state in workers if state.id in missing)
    if need.nodes_max > 1 and largest(need, able) < need.nodes:
        releases = "; ".join(f"{_name(state)}: {state.release or 'no torch'}" for state in able)
        return f"the nodes run different releases ({releases}), but one training run needs the same on all"
    return None


def _name(state: WorkerState) -> str:
    return state.host or state.id
