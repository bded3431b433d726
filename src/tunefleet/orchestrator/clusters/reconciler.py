"""Reconciles cluster jobs with the tasks that need them: submit, poll, end. Runs on the leader only, without state.

A job is stored before it is submitted, under a unique name that makes the submission idempotent: after a crash the
server looks it up by name.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from tunefleet.db import Connection
from tunefleet.db.fleet import clusters
from tunefleet.db.fleet.clusters import ClusterJobRow
from tunefleet.db.repositories import tasks
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError, TunefleetError, UnreachableError
from tunefleet.integrations.clusters import Cluster, ClusterJobState
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.clusters import cluster_jobs
from tunefleet.orchestrator.clusters.policy import JobWorkers, Step, next_step
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.fleet.engines import Engines
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.placement import Requirement, WorkerState, lacks
from tunefleet.placement.gangs import largest

log = logging.getLogger(__name__)
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_NO_ENGINE_S: Final = 600.0
_UNKNOWN: Final = "the server has no settings for this engine"


class ClusterReconciler:
    """Submits, polls and ends the cluster jobs of a server."""

    def __init__(self, core: ServerContext, url: str | None) -> None:
        self._core = core
        self._settings = core.settings
        self._url = core.settings.nodes_url or core.settings.public_base_url or url or ""
        if core.state(Engines).clusters and urlsplit(self._url).hostname in _LOOPBACK:
            log.warning(
                "Nodes of %s cannot reach this server at %s, a loopback address: set TUNEFLEET_NODES_URL to one "
                "in their network.", " and ".join(core.state(Engines).clusters), self._url,
            )  # fmt: skip

    async def run_for_a_while(self) -> None:
        """Run once, then wait for the next poll or until a task needs nodes; raises what `run_once` does."""
        signals = self._core.signals
        seen = signals.version(clusters.TOPIC)
        await self.run_once()
        # Without engines, jobs of engines that were enabled before still have to be ended.
        pause_s = self._settings.nodes_look_s if self._core.state(Engines).clusters else _NO_ENGINE_S
        await signals.wait(clusters.TOPIC, pause_s, seen)

    async def run_once(self) -> None:
        """Poll every job once, and submit those that are missing.

        Raises:
            UnreachableError: If a cluster does not respond; the others are processed first.
            ConflictError: If one returns an invalid response; likewise.
        """
        fleet, engines = cluster_state.fleet_snapshot(self._core), self._core.state(Engines).clusters
        current = await self._core.read(
            partial(take, fleet=fleet, engines=tuple(engines), most=self._settings.nodes_jobs)
        )
        if current.fresh:
            await self._core.write(partial(cluster_jobs.record_use, names=current.fresh))
        away: list[TunefleetError] = []
        for engine, cluster in engines.items():
            try:
                await self._reconcile(engine, cluster, current)
            except (UnreachableError, ConflictError) as error:
                away.append(error)
        for job in (job for job in current.jobs if job.engine not in engines):
            await self._end(job, Step("end", _UNKNOWN))
        if away:
            raise away[0]

    @property
    def _wall(self) -> float:
        return self._core.clock.wall()

    async def _reconcile(self, engine: str, cluster: Cluster, current: ClusterSnapshot) -> None:
        jobs = [job for job in current.jobs if job.engine == engine]
        # In threads: Slurm's commands and Ray's HTTP API block.
        seen = await asyncio.to_thread(cluster.look, [job.name for job in jobs]) if jobs else {}
        for job in jobs:
            workers = current.workers.get(job.name, JobWorkers())
            status = current.statuses.get(job.task_id)
            step = next_step(
                job, status, seen.get(job.name), workers, now=self._wall,
                patience_s=self._settings.nodes_patience_s, lost_after_s=self._settings.lost_after_s,
            )  # fmt: skip
            await self._carry_out(cluster, job, seen.get(job.name), step)
        for row, name in current.waiting:
            if name == engine:
                await self._submit(engine, cluster, row.id)

    async def _carry_out(self, cluster: Cluster, job: ClusterJobRow, seen: ClusterJobState | None, step: Step) -> None:
        if step.act in {"waits", "runs"} and seen is not None:
            await self._core.write(
                lambda connection: cluster_jobs.record_state(connection, job, seen, step.reason, self._wall)
            )
        if step.act in {"leave", "cancel"}:
            await self._core.write(lambda connection: cluster_jobs.drain(connection, job, step, self._wall))
        if step.act in {"cancel", "fail"} and (seen is None or seen.stage != "ended"):
            try:
                await asyncio.to_thread(cluster.cancel, job.name)
            except ConflictError as error:
                log.warning("%s cannot cancel job %s: %s", job.engine, job.name, error)
        if step.act in {"end", "fail"}:
            await self._end(job, step)

    async def _end(self, job: ClusterJobRow, step: Step) -> None:
        def operation(connection: Connection) -> list[str]:
            removed = cluster_jobs.record_end(connection, job, step.reason, self._wall)
            task = tasks.by_ids(connection, [job.task_id], lock=True).get(job.task_id)
            if step.act == "fail" and task is not None and task.status == TaskStatus.QUEUED:
                cluster_jobs.fail_task(connection, task, job.engine, step.reason or "ended", self._wall)
            return removed

        # After the commit: presence is memory state, which a rollback would not restore.
        for worker_id in await self._core.write(operation):
            self._core.state(Fleet).forget(worker_id)

    async def _submit(self, engine: str, cluster: Cluster, task_id: str) -> None:
        new_job = await self._core.write(partial(cluster_jobs.create, task_id=task_id, engine=engine, now=self._wall))
        if new_job is None:
            return
        settings = self._settings
        command = (*shlex.split(settings.nodes_command), "worker", "--once", task_id, "--server", self._url)
        environment = {
            "TUNEFLEET_NODES_JOB": new_job.row.name,
            "TUNEFLEET_NODES_PATIENCE_S": f"{settings.nodes_patience_s:g}",
        }
        if engine == "slurm" or settings.nodes_dir is not None:
            environment["TUNEFLEET_NODES_DIR"] = str(settings.nodes_folder)
        try:
            job_id = await asyncio.to_thread(
                cluster.submit, new_job.node_request(environment, command, settings.nodes_patience_s)
            )
        except ConflictError as error:
            refusal: TunefleetError = error
            await self._core.write(
                lambda connection: cluster_jobs.record_rejection(connection, new_job.row, refusal, self._wall)
            )
            return
        except UnreachableError as error:
            # The job may have been accepted: the next poll finds it by name.
            away: TunefleetError = error
            await self._core.write(lambda connection: cluster_jobs.record_unconfirmed(connection, new_job.row, away))
            log.warning("It is unknown whether %s has accepted %s: %s", engine, new_job.row.name, error)
            raise
        log.info("Submitted %s to %s: job %s.", new_job.row.name, engine, job_id)
        await self._core.write(
            lambda connection: cluster_jobs.record_submission(connection, new_job.row, job_id, self._wall)
        )


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
        held="waiting for its retry" if task.ready_at > now else held.why(task.project, need),
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
