"""Keeps the jobs of clusters as tasks need them: asks, looks, ends. The leader's alone; nothing of it is in memory.

What a job needs is stored before the cluster is asked, under a name that makes asking twice the same as once: a server
that was killed in between finds it, there or not.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from tunefleet.db import Connection
from tunefleet.db.fleet import clusters
from tunefleet.db.fleet.clusters import ClusterJobRow
from tunefleet.db.repositories import tasks
from tunefleet.errors import ConflictError, TunefleetError, UnreachableError
from tunefleet.integrations.clusters import Cluster, Seen
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.clusters import cluster_jobs, snapshot
from tunefleet.orchestrator.clusters.policy import Crew, Step, next_step
from tunefleet.orchestrator.clusters.snapshot import Picture
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.scheduling import cluster_state

log = logging.getLogger(__name__)
_HERE: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_NOBODY_S: Final = 600.0
_UNKNOWN: Final = "the server has no settings for this engine any more"


class ClusterKeeper:
    """Brings jobs and tasks together."""

    def __init__(self, core: Core, url: str | None) -> None:
        self._core = core
        self._settings = core.settings
        self._url = core.settings.nodes_url or core.settings.public_base_url or url or ""
        if core.engines.clusters and urlsplit(self._url).hostname in _HERE:
            log.warning(
                "Nodes of %s are told to find this server at %s, which only this machine does: set TUNEFLEET_NODES_URL "
                "to its address in their network.", " and ".join(core.engines.clusters), self._url,
            )  # fmt: skip

    async def run_for_a_while(self) -> None:
        """Look, and wait until it is time to look again, or a task asks for nodes; raises what `run_once` does."""
        signals = self._core.signals
        seen = signals.version(clusters.TOPIC)
        await self.run_once()
        # Where no engine is asked, jobs that were asked for before end all the same.
        pause_s = self._settings.nodes_look_s if self._core.engines.clusters else _NOBODY_S
        await signals.wait(clusters.TOPIC, pause_s, seen)

    async def run_once(self) -> None:
        """Look at every job once, and ask for those that are missing.

        Raises:
            UnreachableError: If a cluster does not answer; what the others told is done all the same.
            ConflictError: If one answers what cannot be understood; likewise.
        """
        here, engines = cluster_state.presences(self._core), self._core.engines.clusters
        now = await self._core.read(
            partial(snapshot.take, here=here, engines=tuple(engines), most=self._settings.nodes_jobs)
        )
        if now.fresh:
            await self._core.write(partial(cluster_jobs.note_used, names=now.fresh))
        away: list[TunefleetError] = []
        for engine, cluster in engines.items():
            try:
                await self._keep(engine, cluster, now)
            except (UnreachableError, ConflictError) as error:
                away.append(error)
        for job in (job for job in now.jobs if job.engine not in engines):
            await self._end(job, Step("end", _UNKNOWN))
        if away:
            raise away[0]

    @property
    def _wall(self) -> float:
        return self._core.clock.wall()

    async def _keep(self, engine: str, cluster: Cluster, now: Picture) -> None:
        jobs = [job for job in now.jobs if job.engine == engine]
        seen = await asyncio.to_thread(cluster.look, [job.name for job in jobs]) if jobs else {}
        for job in jobs:
            crew = now.crews.get(job.name, Crew())
            status = now.statuses.get(job.task_id)
            step = next_step(
                job, status, seen.get(job.name), crew, now=self._wall,
                patience_s=self._settings.nodes_patience_s, lost_after_s=self._settings.lost_after_s,
            )  # fmt: skip
            await self._take(cluster, job, seen.get(job.name), step)
        for row, name in now.waiting:
            if name == engine:
                await self._ask(engine, cluster, row.id)

    async def _take(self, cluster: Cluster, job: ClusterJobRow, seen: Seen | None, step: Step) -> None:
        if step.act in {"waits", "runs"} and seen is not None:
            await self._core.write(lambda connection: cluster_jobs.stands(connection, job, seen, step.told, self._wall))
        if step.act in {"leave", "cancel"}:
            await self._core.write(lambda connection: cluster_jobs.leaves(connection, job, step, self._wall))
        if step.act in {"cancel", "fail"} and (seen is None or seen.stage != "ended"):
            try:
                await asyncio.to_thread(cluster.cancel, job.name)
            except ConflictError as error:
                log.warning("%s does not end the job %s: %s", job.engine, job.name, error)
        if step.act in {"end", "fail"}:
            await self._end(job, step)

    async def _end(self, job: ClusterJobRow, step: Step) -> None:
        def operation(connection: Connection) -> list[str]:
            gone = cluster_jobs.ended(connection, job, step.told, self._wall)
            task = tasks.by_ids(connection, [job.task_id], lock=True).get(job.task_id)
            if step.act == "fail" and task is not None and task.status == TaskStatus.QUEUED:
                cluster_jobs.fail(connection, task, job.engine, step.told or "ended", self._wall)
            return gone

        for worker_id in await self._core.write(operation):
            self._core.fleet.forget(worker_id)

    async def _ask(self, engine: str, cluster: Cluster, task_id: str) -> None:
        order = await self._core.write(partial(cluster_jobs.order, task_id=task_id, engine=engine, now=self._wall))
        if order is None:
            return
        settings = self._settings
        command = (*shlex.split(settings.nodes_command), "worker", "--once", task_id, "--server", self._url)
        environment = {
            "TUNEFLEET_NODES_JOB": order.row.name,
            "TUNEFLEET_NODES_PATIENCE_S": f"{settings.nodes_patience_s:g}",
        }
        if engine == "slurm" or settings.nodes_dir is not None:
            environment["TUNEFLEET_NODES_DIR"] = str(settings.nodes_folder)
        try:
            job_id = await asyncio.to_thread(cluster.submit, order.ask(environment, command, settings.nodes_patience_s))
        except ConflictError as error:
            refusal: TunefleetError = error
            await self._core.write(lambda connection: cluster_jobs.refused(connection, order.row, refusal, self._wall))
            return
        except UnreachableError as error:
            # Perhaps it was taken: the next look tells, by its name.
            away: TunefleetError = error
            await self._core.write(lambda connection: cluster_jobs.unsure(connection, order.row, away))
            log.warning("%s was not told of %s for sure: %s", engine, order.row.name, error)
            raise
        log.info("Asked %s for %s: job %s.", engine, order.row.name, job_id)
        await self._core.write(lambda connection: cluster_jobs.submitted(connection, order.row, job_id, self._wall))
