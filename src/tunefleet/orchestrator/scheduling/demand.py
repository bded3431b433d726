"""Demand: how many workers of a pool the queue could use, for external autoscalers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import task_list
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.placement import Requirement, WorkerState, is_able
from tunefleet.schemas.ui import TaskDemand

# How long the capabilities of workers that have left predict those of the next ones: the pool may be reconfigured.
_REMEMBERED_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """A pool of workers that an autoscaler could start.

    Args:
        pool: Prefix of the worker ids, up to the first dot.
        cpu: Cores of each; 0 if unknown.
        memory_bytes: Main memory of each; 0 if unknown.
    """

    pool: str
    cpu: int = 0
    memory_bytes: int = 0
    gpu_count: int = 0
    tags: frozenset[str] = frozenset()
    allow_code: bool = False

    def may_run(self, need: Requirement) -> bool:
        """Whether the known properties allow the task; supported kinds are not known."""
        return (
            (need.gpu_optional or need.gpu_count <= self.gpu_count)
            and (not self.cpu or need.cpu <= self.cpu)
            and (not self.memory_bytes or need.memory_bytes <= self.memory_bytes)
            and all(tag in self.tags or self.owns(tag) for tag in need.tags)
            and (self.allow_code or not need.code)
        )

    def owns(self, worker_id: str) -> bool:
        """Whether a worker belongs to the pool."""
        return worker_id.startswith(f"{self.pool}.")


@dataclass(slots=True)
class RecentPools:
    """The pools that autoscalers have asked for, which may start workers: pool → when, on the wall clock."""

    at: dict[WorkerPool, float] = field(default_factory=dict)

    def since(self, now: float) -> tuple[WorkerPool, ...]:
        """Return the pools that were asked for lately, and forget the others."""
        self.at = {pool: at for pool, at in self.at.items() if now - at < _REMEMBERED_S}
        return tuple(self.at)


async def of(core: ServerContext, actor: Actor, sort: WorkerPool) -> TaskDemand:
    """Return how many workers the queued tasks of the actor's project could use, one for each node.

    Tasks that get nodes from an engine, tasks in backoff and tasks that the pool cannot run are left out. What the pool
    can run is taken from its live workers, else from recent ones, else from `sort`.
    """
    may_read(actor)
    core.state(RecentPools).at[sort] = core.clock.wall()
    snapshot = cluster_state.fleet_snapshot(core)

    def operation(connection: Connection) -> TaskDemand:
        waiting = task_list.queued_by_need(connection, actor.project, snapshot.now)
        known = _known(connection, snapshot, actor.project, sort)
        needs = cluster_state.needs_of(connection, [(key, actor.project) for key in waiting], known)
        taken = [
            count * need.nodes
            for count, need in ((count, needs[key, actor.project]) for key, count in waiting.items())
            if (is_able(need, known) if known else sort.may_run(need))
        ]
        return TaskDemand(workers=sum(taken))

    return await core.read(operation)


def _known(connection: Connection, snapshot: FleetSnapshot, project: str, sort: WorkerPool) -> list[WorkerState]:
    """Return the workers whose capabilities stand for the pool: the live ones, else the recent ones."""
    mine = [
        state
        for state in cluster_state.serving(cluster_state.states(connection, snapshot), project)
        if sort.owns(state.id)
    ]
    present = [state for state in mine if state.present]
    if present or not mine:
        return present
    # Without recent workers an empty pool would be started again and again for tasks that it cannot run.
    lately = worker_rows.seen_since(connection, snapshot.now - _REMEMBERED_S)
    return [state for state in mine if state.id in lately]
