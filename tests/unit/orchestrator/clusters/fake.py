"""A cluster in memory, under a test's hands, and the workers that it would start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from tests.unit.orchestrator.lab import TRAIN, FakeWorker, Lab
from tunefleet.db.fleet.clusters import ClusterJobRow
from tunefleet.db.tables.operations import cluster_jobs
from tunefleet.integrations.clusters import Cluster, ClusterJobState, NodeRequest
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.clusters.reconciler import ClusterReconciler
from tunefleet.orchestrator.fleet.engines import Engines
from tunefleet.orchestrator.preflight import explain as task_explain

ON_SLURM = TRAIN.rstrip() + "\n  engine: slurm\n"
TWO: Mapping[str, Any] = {"torch_version": "2.13"}
"""What each of the nodes of one training has."""


def on_slurm(more: str) -> str:
    return f"{ON_SLURM}  {more}\n"


@dataclass
class FakeCluster(Cluster):
    """Does nothing by itself: a test moves its jobs."""

    asks: dict[str, NodeRequest] = field(default_factory=dict)
    jobs: dict[str, ClusterJobState] = field(default_factory=dict)
    submits: list[str] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    error: Exception | None = None
    """Of every call."""
    refusal: Exception | None = None
    """Of the next submits."""

    def submit(self, ask: NodeRequest) -> str:
        if self.error or self.refusal:
            raise self.error or self.refusal  # type: ignore[misc]
        if ask.name not in self.jobs or self.jobs[ask.name].stage == "ended":
            self.submits.append(ask.name)
            self.jobs[ask.name] = ClusterJobState(str(100 + len(self.submits)), "waiting", "pending (Priority)")
            self.asks[ask.name] = ask
        return self.jobs[ask.name].job_id

    def look(self, names: Sequence[str]) -> dict[str, ClusterJobState]:
        if self.error:
            raise self.error
        return {name: self.jobs[name] for name in names if name in self.jobs}

    def cancel(self, name: str) -> None:
        if self.error:
            raise self.error
        self.cancels.append(name)

    @property
    def newest(self) -> str:
        return self.submits[-1]

    def now(self, stage: Any, told: str = "", **more: Any) -> None:
        """Let the newest job stand there."""
        self.jobs[self.newest] = ClusterJobState(self.jobs[self.newest].job_id, stage, told, **more)


@dataclass
class Field:
    """A server with a fake Slurm, and its keeper."""

    lab: Lab
    slurm: FakeCluster = field(default_factory=FakeCluster)

    def __post_init__(self) -> None:
        self.lab.core.put_state(Engines({"slurm": self.slurm}))

    async def look(self, *, after_s: float = 5.0) -> None:
        """Let the leader look once, after some time."""
        self.lab.clock.advance(after_s)
        await ClusterReconciler(self.lab.core, "http://server:8000").run_once()

    async def asked(self, document: str = ON_SLURM) -> str:
        """Submit a task, and let its nodes be asked for."""
        task_id = await self.lab.submit(document)
        await self.look()
        return task_id

    async def nodes(self, *workers: dict[str, Any], told: Any = None) -> list[FakeWorker]:
        """Give the newest job its nodes, on each of which a worker starts; a mapping says what one has."""
        self.slurm.now("running")
        await self.look()
        return [await self.worker(number, **has) for number, has in enumerate(workers or ({},))]

    async def worker(self, number: int = 0, **has: Any) -> FakeWorker:
        name = self.slurm.newest
        actor = await api_keys.authenticate(self.lab.core, self.slurm.asks[name].environment["TUNEFLEET_WORKER_KEY"])
        worker = self.lab.worker(f"{name}.{number}", actor=actor, session=f"s-{name}-{number}")
        await worker.register(hostname=f"node{number}", **has)
        await worker.exchange()
        return worker

    async def rows(self) -> list[ClusterJobRow]:
        """Return all jobs as they are stored."""
        return await self.lab.core.read(_all)

    async def row(self) -> ClusterJobRow:
        return (await self.rows())[-1]

    async def stands(self, task_id: str) -> tuple[str, str | None]:
        task = await self.lab.task(task_id)
        return task.status, task.reason

    async def why(self, task_id: str) -> str:
        told = (await task_explain.of_task(self.lab.core, self.lab.admin, task_id)).why
        assert (await self.lab.task(task_id)).why == told
        return told or ""


def _all(connection: Any) -> list[ClusterJobRow]:
    columns = [cluster_jobs.c[name] for name in ClusterJobRow._fields]
    return [ClusterJobRow(*row) for row in connection.execute(select(*columns).order_by(cluster_jobs.c.seq))]
