"""Who may rest because there is nothing to do, and who is called back.

A resting worker runs on and is only passed by. Whoever waits never waits for that: a worker that alone can run a
waiting task does not rest, and one that rests and alone could run it is called back at once, whatever the thresholds
say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tunefleet.placement.match import lacks
from tunefleet.placement.model import Requirement, WorkerState
from tunefleet.placement.policy import capacity


@dataclass(frozen=True, slots=True)
class Rules:
    """When workers rest and come back.

    Args:
        enable_queue: How many tasks must wait before workers are called back; one is enough with 0.
    """

    idle_s: float
    enable_queue: int
    disable_queue: int
    cooldown_s: float
    min_active: int = 1
    enable_many: bool = True


@dataclass(frozen=True, slots=True)
class Member:
    """A worker that answers, and is neither cordoned nor drained, nor takes tasks by itself.

    Args:
        idle_s: For how long it has had nothing to do; 0 if it has.
    """

    state: WorkerState
    rests: bool
    idle_s: float
    unchanged_s: float
    needed: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many tasks with one need wait for their turn."""

    need: Requirement
    count: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Who is called back, and who is sent to rest, each with the reason as a clause; never both at a time."""

    wake: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Pool:
    members: Sequence[Member]
    queue: list[tuple[Waiting, frozenset[str]]]
    """What waits and somebody here can run, with who can."""
    active: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.active = {member.state.id for member in self.members if not member.rests}

    @property
    def length(self) -> int:
        return sum(waiting.count for waiting, _ in self.queue)


def decide(rules: Rules, members: Sequence[Member], waiting: Iterable[Waiting], *, may_rest: bool = True) -> Changes:
    """Decide once."""
    able = (
        (each, frozenset(member.state.id for member in members if lacks(each.need, member.state) is None))
        for each in waiting
        if each.count > 0
    )
    # What nobody here can run keeps nobody awake.
    pool = _Pool(members, [(each, who) for each, who in able if who])
    woken = dict.fromkeys(_needed(pool), "nobody who was awake can run what waits")
    woken |= dict.fromkeys(_missing(pool, rules), f"fewer than {max(1, rules.min_active)} were awake")
    woken |= dict.fromkeys(_wanted(pool, rules), f"the queue is {pool.length} long")
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
    """Return who rests and alone can run something that waits."""
    woken = [_wake(pool, member) for member in _largest_first(pool) if member.needed]
    for waiting, who in pool.queue:
        missing = _enough(waiting, who) - len(who & pool.active)
        able = (member for member in _largest_first(pool) if member.state.id in who)
        woken += [_wake(pool, member) for member, _ in zip(able, range(missing), strict=False)]
    return woken


def _enough(waiting: Waiting, who: frozenset[str]) -> int:
    """Return how many of those that can run something must be awake for it: one, or as many as it has nodes."""
    return min(waiting.need.nodes, len(who))


def _missing(pool: _Pool, rules: Rules) -> list[str]:
    """Return who is called back because too few are left, perhaps since one was lost."""
    count = max(1, rules.min_active) - len(pool.active)
    return [_wake(pool, member) for member in _largest_first(pool)[: max(0, count)]]


def _wanted(pool: _Pool, rules: Rules) -> list[str]:
    """Return who is called back because the queue is long, until it is short or nobody else can help."""
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
    """Return who may rest and why, the smallest first; those that stay can run everything that waits."""
    if pool.length > rules.disable_queue:
        return {}
    sent: dict[str, str] = {}
    awake = [member for member in pool.members if member.state.id in pool.active]
    # How many more of those that can run something may rest: counted down, since a fleet has thousands.
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
            idle = f"it has had nothing to do for {member.idle_s:.0f} s"
            sent[id_] = f"{idle}, and the queue is {pool.length} long"
    return sent
