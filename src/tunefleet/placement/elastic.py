"""Autoscaling decisions: which idle workers go to standby, and which are activated.

A worker on standby keeps running and only gets no tasks. A pending task never waits for a worker on standby: the only
worker that can run it does not go to standby, or is activated regardless of the thresholds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tunefleet.placement.match import lacks
from tunefleet.placement.model import Requirement, WorkerState
from tunefleet.placement.policy import capacity


@dataclass(frozen=True, slots=True)
class Rules:
    """Thresholds for standby and activation.

    Args:
        enable_queue: Queue length from which workers are activated; 0 counts as 1.
    """

    idle_s: float
    enable_queue: int
    disable_queue: int
    cooldown_s: float
    min_active: int = 1
    enable_many: bool = True


@dataclass(frozen=True, slots=True)
class Member:
    """A live worker that is not cordoned or drained and does not pull its tasks.

    Args:
        idle_s: How long it has been idle; 0 if it runs a task.
    """

    state: WorkerState
    on_standby: bool
    idle_s: float
    unchanged_s: float
    needed: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """The number of queued tasks with one requirement."""

    need: Requirement
    count: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Worker id → reason, for workers to activate and to put on standby; one of the two is always empty."""

    activate: Mapping[str, str] = field(default_factory=dict)
    standby: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Pool:
    members: Sequence[Member]
    queue: list[tuple[Waiting, frozenset[str]]]
    """Queued tasks that a member can run, each with the ids of those members."""
    active: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.active = {member.state.id for member in self.members if not member.on_standby}

    @property
    def length(self) -> int:
        return sum(waiting.count for waiting, _ in self.queue)


def decide(rules: Rules, members: Sequence[Member], waiting: Iterable[Waiting], *, may_idle: bool = True) -> Changes:
    """Return the changes for the current queue and fleet."""
    able = (
        (each, frozenset(member.state.id for member in members if lacks(each.need, member.state) is None))
        for each in waiting
        if each.count > 0
    )
    # A task that no member can run must not keep workers active.
    pool = _Pool(members, [(each, able_ids) for each, able_ids in able if able_ids])
    activated = dict.fromkeys(_activate_needed(pool), "no active worker can run a pending task")
    activated |= dict.fromkeys(
        _activate_minimum(pool, rules), f"fewer than {max(1, rules.min_active)} workers were active"
    )
    activated |= dict.fromkeys(_activate_for_queue(pool, rules), f"the queue length is {pool.length}")
    # Activating and idling in one cycle would make workers flap.
    if activated or not may_idle:
        return Changes(activate=activated)
    return Changes(standby=_find_idle(pool, rules))


def _largest_first(pool: _Pool) -> list[Member]:
    resting = (member for member in pool.members if member.state.id not in pool.active)
    return sorted(resting, key=lambda member: (-capacity(member.state), member.state.id))


def _activate(pool: _Pool, member: Member) -> str:
    pool.active.add(member.state.id)
    return member.state.id


def _activate_needed(pool: _Pool) -> list[str]:
    """Activate the workers on standby without which a queued task cannot run."""
    activated = [_activate(pool, member) for member in _largest_first(pool) if member.needed]
    for waiting, able_ids in pool.queue:
        missing = _required_active(waiting, able_ids) - len(able_ids & pool.active)
        able = (member for member in _largest_first(pool) if member.state.id in able_ids)
        activated += [_activate(pool, member) for member, _ in zip(able, range(missing), strict=False)]
    return activated


def _required_active(waiting: Waiting, able_ids: frozenset[str]) -> int:
    """Return how many able workers must be active: one, or one for each node."""
    return min(waiting.need.nodes, len(able_ids))


def _activate_minimum(pool: _Pool, rules: Rules) -> list[str]:
    """Activate workers until `min_active` is reached, for example after one was lost."""
    count = max(1, rules.min_active) - len(pool.active)
    return [_activate(pool, member) for member in _largest_first(pool)[: max(0, count)]]


def _activate_for_queue(pool: _Pool, rules: Rules) -> list[str]:
    """Activate workers until the queue is below its threshold or no other worker can help."""
    activated: list[str] = []
    left = {id(waiting): waiting.count for waiting, _ in pool.queue}
    for member in _largest_first(pool):
        if sum(left.values()) < max(1, rules.enable_queue) or (activated and not rules.enable_many):
            break
        mine = [waiting for waiting, able_ids in pool.queue if member.state.id in able_ids and left[id(waiting)] > 0]
        if not mine:
            continue
        activated.append(_activate(pool, member))
        takes = dict(member.state.slots)
        for waiting in mine:
            taken = min(left[id(waiting)], max(0, takes.get(waiting.need.slot_class, 0)))
            takes[waiting.need.slot_class] = takes.get(waiting.need.slot_class, 0) - taken
            left[id(waiting)] -= taken
    return activated


def _find_idle(pool: _Pool, rules: Rules) -> dict[str, str]:
    """Return the workers for standby with the reason, smallest first; the others can run every queued task."""
    if pool.length > rules.disable_queue:
        return {}
    idle_workers: dict[str, str] = {}
    active = [member for member in pool.members if member.state.id in pool.active]
    # Number of able workers that each task can spare, counted down: recounting is too slow with thousands of workers.
    spare = [len(able_ids & pool.active) - _required_active(each, able_ids) for each, able_ids in pool.queue]
    for member in sorted(active, key=lambda member: (capacity(member.state), member.state.id)):
        id_ = member.state.id
        idle_enough = member.idle_s >= rules.idle_s and member.unchanged_s >= rules.cooldown_s and not member.needed
        if not idle_enough or len(pool.active) <= max(1, rules.min_active):
            continue
        left = [count - (id_ in able_ids) for count, (_, able_ids) in zip(spare, pool.queue, strict=True)]
        if all(count >= 0 for count in left):
            spare = left
            pool.active.discard(id_)
            idle = f"idle for {member.idle_s:.0f} s"
            idle_workers[id_] = f"{idle}, and the queue length is {pool.length}"
    return idle_workers
