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
    rests: bool
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

    wake: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Pool:
    members: Sequence[Member]
    queue: list[tuple[Waiting, frozenset[str]]]
    """Queued tasks that a member can run, each with the ids of those members."""
    active: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.active = {member.state.id for member in self.members if not member.rests}

    @property
    def length(self) -> int:
        return sum(waiting.count for waiting, _ in self.queue)


def decide(rules: Rules, members: Sequence[Member], waiting: Iterable[Waiting], *, may_rest: bool = True) -> Changes:
    """Return the changes for the current queue and fleet."""
    able = (
        (each, frozenset(member.state.id for member in members if lacks(each.need, member.state) is None))
        for each in waiting
        if each.count > 0
    )
    # A task that no member can run must not keep workers active.
    pool = _Pool(members, [(each, who) for each, who in able if who])
    woken = dict.fromkeys(_needed(pool), "no active worker can run a pending task")
    woken |= dict.fromkeys(_missing(pool, rules), f"fewer than {max(1, rules.min_active)} workers were active")
    woken |= dict.fromkeys(_wanted(pool, rules), f"the queue length is {pool.length}")
    # Activating and idling in one cycle would make workers flap.
    if woken or not may_rest:
        return Changes(wake=woken)
    return Changes(rest=_idle(pool, rules))


def _largest_first(pool: _Pool) -> list[Member]:
    resting = (member for member in pool.members if member.state.id not in pool.active)
    return sorted(resting, key=lambda member: (-capacity(member.state), member.state.id))


def _wake(pool: _Pool, member: Member) -> str:
    pool.active.add(member.state.id)
    return member.state.id


def _needed(pool: _Pool) -> list[str]:
    """Activate the workers on standby without which a queued task cannot run."""
    woken = [_wake(pool, member) for member in _largest_first(pool) if member.needed]
    for waiting, who in pool.queue:
        missing = _enough(waiting, who) - len(who & pool.active)
        able = (member for member in _largest_first(pool) if member.state.id in who)
        woken += [_wake(pool, member) for member, _ in zip(able, range(missing), strict=False)]
    return woken


def _enough(waiting: Waiting, who: frozenset[str]) -> int:
    """Return how many able workers must be active: one, or one for each node."""
    return min(waiting.need.nodes, len(who))


def _missing(pool: _Pool, rules: Rules) -> list[str]:
    """Activate workers until `min_active` is reached, for example after one was lost."""
    count = max(1, rules.min_active) - len(pool.active)
    return [_wake(pool, member) for member in _largest_first(pool)[: max(0, count)]]


def _wanted(pool: _Pool, rules: Rules) -> list[str]:
    """Activate workers until the queue is below its threshold or no other worker can help."""
    woken: list[str] = []
    left = {id(waiting): waiting.count for waiting, _ in pool.queue}
    for member in _largest_first(pool):
        if sum(left.values()) < max(1, rules.enable_queue) or (woken and not rules.enable_many):
            break
        mine = [waiting for waiting, who in pool.queue if member.state.id in who and left[id(waiting)] > 0]
        if not mine:
            continue
        woken.append(_wake(pool, member))
        takes = dict(member.state.slots)
        for waiting in mine:
            taken = min(left[id(waiting)], max(0, takes.get(waiting.need.slot_class, 0)))
            takes[waiting.need.slot_class] = takes.get(waiting.need.slot_class, 0) - taken
            left[id(waiting)] -= taken
    return woken


def _idle(pool: _Pool, rules: Rules) -> dict[str, str]:
    """Return the workers for standby with the reason, smallest first; the others can run every queued task."""
    if pool.length > rules.disable_queue:
        return {}
    sent: dict[str, str] = {}
    awake = [member for member in pool.members if member.state.id in pool.active]
    # Number of able workers that each task can spare, counted down: recounting is too slow with thousands of workers.
    spare = [len(who & pool.active) - _enough(each, who) for each, who in pool.queue]
    for member in sorted(awake, key=lambda member: (capacity(member.state), member.state.id)):
        id_ = member.state.id
        tired = member.idle_s >= rules.idle_s and member.unchanged_s >= rules.cooldown_s and not member.needed
        if not tired or len(pool.active) <= max(1, rules.min_active):
            continue
        left = [count - (id_ in who) for count, (_, who) in zip(spare, pool.queue, strict=True)]
        if all(count >= 0 for count in left):
            spare = left
            pool.active.discard(id_)
            idle = f"idle for {member.idle_s:.0f} s"
            sent[id_] = f"{idle}, and the queue length is {pool.length}"
    return sent
