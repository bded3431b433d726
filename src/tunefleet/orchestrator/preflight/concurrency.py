"""How many workers the tasks of a workflow file need at the same time, and how many of them the fleet has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunefleet.orchestrator.fleet import federation_capacity
from tunefleet.orchestrator.tasks.fan_out import MAX_AUTO
from tunefleet.placement import Assignment, Candidate, FreeCapacity, Policy, Requirement, WorkerState, is_able
from tunefleet.schemas.fleet import ConcurrencyForecast
from tunefleet.spec import TaskNode, asked_shards


@dataclass(frozen=True, slots=True)
class Demand:
    """The workers that a task needs at the same time.

    Args:
        least: Minimum, without which it waits.
        most: Maximum.
        parts: Number of tasks that are scheduled for it; a gang is one task on several workers.
    """

    need: Requirement
    least: int = 1
    most: int = 1
    parts: int = 1

    def candidates(self, name: str, rank: float) -> list[Candidate]:
        """Return what the scheduler places for the task."""
        return [Candidate(f"{name}#{number}", self.need, rank) for number in range(self.parts)]


def demand_of(raw: Mapping[str, Any], need: Requirement, fleet: Sequence[WorkerState]) -> Demand:
    """Return the demand of a task.

    Args:
        raw: The mapping below `spec`, which may have references.
    """
    if need.nodes_max > 1:
        return Demand(need, need.nodes, need.nodes_max)
    parts = asked_shards(raw)
    federation = raw.get("federation")
    if isinstance(federation, Mapping) and parts is not None:
        least = federation.get("min_workers", 2)
        # Without waiting for the next version, parts may also run one after another.
        together = isinstance(least, int) and federation.get("wait_s") != 0
        return Demand(need, least if together else 1, parts, parts)
    if parts is None:
        parts = min(MAX_AUTO, sum(is_able(need, [worker]) for worker in fleet if worker.present)) or 1
    data = raw.get("data")
    items = data.get("items") if isinstance(data, Mapping) else None
    parts = max(1, min(parts, len(items))) if isinstance(items, list) else parts
    return Demand(need, 1, parts, parts)


def assign(demands: Mapping[str, Demand], fleet: Sequence[WorkerState], policy: Policy) -> dict[str, list[str]]:
    """Place tasks in their order on the fleet as it is now.

    Returns:
        Name → its workers; a federation that cannot start is left out, as the scheduler holds it back.
    """
    candidates = [
        candidate
        for place, (name, each) in enumerate(demands.items())
        if each.parts == 1 or federation_capacity.together(each.need, fleet, each.least) >= each.least
        for candidate in each.candidates(name, float(place))
    ]
    return _by_task(FreeCapacity(fleet, policy).assign(candidates).assignments)


def _by_task(assignments: Collection[Assignment]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in assignments:
        found.setdefault(each.task_id.rpartition("#")[0], []).extend(each.worker_ids)
    return found


def shortage(demand: Demand, placed: int, fleet: Sequence[WorkerState]) -> str | None:
    """Return why the parts of a task cannot start together; None if they can, or if no worker is able."""
    if demand.parts == 1 or placed >= demand.least or not is_able(demand.need, fleet):
        return None
    online = federation_capacity.together(demand.need, fleet, demand.least)
    head = f"waiting: it needs {demand.least} workers at the same time"
    if online < demand.least:
        return f"{head}; {online} {'is' if online == 1 else 'are'} online, so it will wait."
    return f"{head}; {placed} {'is' if placed == 1 else 'are'} free now."


def peak(
    nodes: Sequence[TaskNode], demands: Mapping[str, Demand], fleet: Sequence[WorkerState]
) -> ConcurrencyForecast | None:
    """Return the largest number of tasks and parts that run at the same time; None if there is never more than one.

    Args:
        demands: Name → demand of the tasks that run on the fleet.
    """
    level: dict[str, int] = {}
    for node in _in_order(nodes):
        level[node.name] = 1 + max((level[name] for name in node.depends_on if name in level), default=-1)
    waves: dict[int, dict[str, Demand]] = {}
    for name, each in demands.items():
        waves.setdefault(level.get(name, 0), {})[name] = each
    wave = max(waves.values(), key=lambda wave: sum(each.most for each in wave.values()), default={})
    wanted = sum(each.most for each in wave.values())
    if wanted < 2:
        return None
    idle = [federation_capacity.emptied(worker) for worker in federation_capacity.usable(fleet)]
    room = sum(map(len, assign(wave, idle, Policy()).values()))
    if room >= wanted:
        enough = "can run all of them"
    else:
        enough = f"can run {room} of them, and the others wait" if room else "can run none of them"
    return ConcurrencyForecast(
        wanted=wanted,
        available=room,
        tasks=tuple(wave),
        summary=f"Up to {wanted} tasks and parts run at the same time; the online workers {enough}.",
    )


def _in_order(nodes: Sequence[TaskNode]) -> list[TaskNode]:
    """Return tasks with upstream tasks first."""
    by_name = {node.name: node for node in nodes}
    done: dict[str, TaskNode] = {}
    for start in nodes:
        stack = [start]
        while stack:
            node = stack[-1]
            left = [by_name[name] for name in node.depends_on if name in by_name and name not in done]
            if left:
                stack.extend(left)
            else:
                done.setdefault(node.name, stack.pop())
    return list(done.values())
