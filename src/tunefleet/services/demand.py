"""How many workers of one sort the queue would take: what a cluster is asked for beyond those that stay."""

from __future__ import annotations

from dataclasses import dataclass

from tunefleet.placement import Requirement, is_able
from tunefleet.services import roster
from tunefleet.services.core import Core
from tunefleet.services.identity import Actor, may_read
from tunefleet.store import Connection, task_list
from tunefleet.wire.page import TaskDemand


@dataclass(frozen=True, slots=True)
class Sort:
    """Workers that somebody could start.

    Args:
        pool: Their ids begin with it and a dot.
        cpu: Cores of each; 0 if that is not known.
        memory_bytes: Main memory of each; 0 if that is not known.
        gpu_count: GPUs of each.
        tags: Tags of each.
        allow_code: Whether they run code that a document names.
    """

    pool: str
    cpu: int = 0
    memory_bytes: int = 0
    gpu_count: int = 0
    tags: frozenset[str] = frozenset()
    allow_code: bool = False

    def may_run(self, need: Requirement) -> bool:
        """Whether nothing that is known of them speaks against it; what kinds they run is not."""
        return (
            (need.gpu_optional or need.gpu_count <= self.gpu_count)
            and (not self.cpu or need.cpu <= self.cpu)
            and (not self.memory_bytes or need.memory_bytes <= self.memory_bytes)
            and all(tag in self.tags or self.owns(tag) for tag in need.tags)
            and (self.allow_code or not need.code)
        )

    def owns(self, worker_id: str) -> bool:
        """Whether a worker is one of them."""
        return worker_id.startswith(f"{self.pool}.")


async def of(core: Core, actor: Actor, sort: Sort) -> TaskDemand:
    """Return how many workers the waiting tasks of the actor's project would take, if each had its own.

    Left out are those that get their nodes from an engine, and those that such workers cannot run: as one of them that
    answers says of itself, or else as `sort` says.
    """
    may_read(actor)
    here = roster.presences(core)

    def operation(connection: Connection) -> TaskDemand:
        waiting = task_list.queued_by_need(connection, actor.project)
        mine = [state for state in roster.states(connection, here) if state.present and sort.owns(state.id)]
        needs = roster.needs_of(connection, [(key, actor.project) for key in waiting], mine)
        taken = [
            count * need.nodes
            for count, need in ((count, needs[key, actor.project]) for key, count in waiting.items())
            if (is_able(need, mine) if mine else sort.may_run(need))
        ]
        return TaskDemand(workers=sum(taken))

    return await core.read(operation)
