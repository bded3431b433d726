"""What the leader remembers of workers between two exchanges; the store holds what must outlive it.

A renewal is a counter. Silence is measured on the leader's own monotonic clock and only while it watches: after a
start, a stop of the process or an outage, nobody is given up for time that the leader has not seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from tunefleet.db import DEFAULT_PROJECT
from tunefleet.schemas.worker_link import GpuLoad, Load

# The session of every agent, a worker that polls; a worker's own is random.
AGENT_SESSION: Final = "agent"
# The longest time between two looks that counts as silence.
MAX_TICK_S: Final = 2.0
# So much more free memory or disk is worth a look at who waits.
NOTEWORTHY_BYTES: Final = 256 << 20
_NOBODY: Final[Mapping[str, str]] = MappingProxyType({})
SAY_AGAIN_S: Final = 1.0
"""What a worker was told and did not act on is told again after this time."""


@dataclass(slots=True)
class Presence:
    """One session of a worker, since it was first heard of.

    Args:
        limits: Slot class → how many attempts it takes in all; replaced when that changes, as it is used elsewhere.
        stalled: The attempts that it said write nothing; null before its first word about it.
        delivering: The attempts whose job is over, and why each is held up: they take no room. The worker says them
            in each exchange, so that a new leader knows them after the first.
    """

    session: str
    renewals: int = 0
    polls: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    said: dict[str, float] = field(default_factory=dict)
    lost: bool = False
    stalled: frozenset[str] | None = None
    delivering: Mapping[str, str] = field(default_factory=dict)
    fetching: Mapping[str, str] = field(default_factory=dict)
    load: Load | None = None
    load_at: float = 0.0
    outdated: bool = False
    project: str = DEFAULT_PROJECT

    def hear(self, load: Load | None, at: float, *, ended: bool, delivering: Mapping[str, str] = _NOBODY) -> bool:
        """Take what a worker tells of its load, and of the jobs that need its machine no more.

        Args:
            load: The figures; null if it tells nothing now.
            delivering: Attempt → why its delivery is held up; empty if it is not.
        """
        over = not delivering.keys() <= self.delivering.keys()
        self.delivering, ended = delivering, ended or over
        if load is None:
            self.outdated = self.outdated or ended
            return over
        before, self.load, self.load_at, self.outdated = self.load, load, at, ended
        return over or before is None or _roomier(load, before)

    def worth_saying(self, keys: set[str], now: float) -> bool:
        """Whether one of these things was not said lately."""
        return any(now - self.said.get(key, -SAY_AGAIN_S) >= SAY_AGAIN_S for key in keys)

    def note(self, keys: set[str], now: float) -> None:
        """Remember that these things are said now; what is no longer to be said is forgotten."""
        self.said = {key: now for key in keys}


@dataclass(slots=True)
class Agent:
    """What is remembered of an agent between two polls.

    Args:
        missed: Attempts that are its own and that it does not name → since when, on the monotonic clock.
    """

    owner: str
    about: tuple[str, ...] = ()
    leased: bool = False
    load: dict[str, Any] = field(default_factory=dict)
    holding: set[str] = field(default_factory=set)
    heard: set[str] = field(default_factory=set)
    missed: dict[str, float] = field(default_factory=dict)


def _roomier(load: Load, before: Load) -> bool:
    """Whether memory, disk or a GPU has become free, by more than figures move by themselves."""
    known = {gpu.uuid: gpu for gpu in before.gpus}
    freed = (gpu for gpu in load.gpus if gpu.uuid in known and _freed(gpu, known[gpu.uuid]))
    more = max(load.memory_free_bytes - before.memory_free_bytes, load.disk_free_bytes - before.disk_free_bytes)
    return more > NOTEWORTHY_BYTES or any(True for _ in freed)


def _freed(gpu: GpuLoad, before: GpuLoad) -> bool:
    if gpu.in_use_by is None and before.in_use_by is not None:
        return True
    return (gpu.memory_free_bytes or 0) - (before.memory_free_bytes or 0) > NOTEWORTHY_BYTES


@dataclass(slots=True)
class _Watched:
    renewals: int
    silence_s: float = 0.0


@dataclass(slots=True)
class ElasticMark:
    """Where elastic scaling stands.

    Args:
        changed_at: Worker → when it was sent to rest or called back last.
    """

    looked_at: float | None = None
    resting: set[str] = field(default_factory=set)
    changed_at: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Fleet:
    """All sessions, and for how long each worker has been silent."""

    presences: dict[str, Presence] = field(default_factory=dict)
    seen_at: dict[str, float] = field(default_factory=dict)
    """Worker id → wall-clock time, not yet stored."""
    told: dict[str, tuple[float, Load]] = field(default_factory=dict)
    """Worker id → when it told how busy it is, on the wall clock, and what; not yet stored."""
    agents: dict[str, Agent] = field(default_factory=dict)
    """The workers that poll."""
    warm: dict[str, dict[str, float]] = field(default_factory=dict)
    """Worker id → model or dataset that it was given a task with → when, on the wall clock."""
    kept: dict[str, str] = field(default_factory=dict)
    """Worker id → the waiting task for which it gathers what becomes free, as of the last placement."""
    joins: dict[int, str] = field(default_factory=dict)
    """At a server that follows: `seq` of a spread task → what its parts' files do meanwhile; see `Core.joins`."""
    in_hand: Counter[str] = field(default_factory=Counter)
    """Worker id → how much of what it said is not worked off yet: the server is late then, and not the worker."""
    worked_at: dict[str, float] = field(default_factory=dict)
    """Worker id → when it had work last, on the monotonic clock; of workers that were seen without any, when first."""
    elastic: ElasticMark = field(default_factory=ElasticMark)
    _watched: dict[str, _Watched] = field(default_factory=dict)
    _ages: dict[str, float] = field(default_factory=dict)
    _looked_at: float | None = None

    def renew(self, worker_id: str, presence: Presence, wall: float) -> None:
        """Count a sign of life."""
        self.presences[worker_id] = presence
        presence.renewals += 1
        self.seen_at[worker_id] = wall

    @contextmanager
    def working_off(self, worker_id: str) -> Iterator[None]:
        """Take a worker for alive while something that it said is worked off."""
        self.in_hand[worker_id] += 1
        try:
            yield
        finally:
            self.in_hand[worker_id] -= 1
            if not self.in_hand[worker_id]:
                del self.in_hand[worker_id]

    def forget(self, worker_id: str) -> None:
        """Forget a worker that was removed."""
        self.presences.pop(worker_id, None)
        self.agents.pop(worker_id, None)
        self.warm.pop(worker_id, None)
        self.worked_at.pop(worker_id, None)
        self.elastic.changed_at.pop(worker_id, None)
        self._watched.pop(worker_id, None)
        self.seen_at.pop(worker_id, None)
        self.told.pop(worker_id, None)

    def give(self, worker_id: str, names: Iterable[str], at: float) -> None:
        """Note models and datasets that a worker is given with a task, on the wall clock."""
        for name in names:
            self.warm.setdefault(worker_id, {})[name] = at

    def warm_since(self, since: float) -> dict[str, frozenset[str]]:
        """Return what workers were given since a time; what they were given before is forgotten."""
        for worker_id in [id_ for id_, given in self.warm.items() if min(given.values(), default=since) <= since]:
            left = {name: at for name, at in self.warm[worker_id].items() if at > since}
            if left:
                self.warm[worker_id] = left
            else:
                del self.warm[worker_id]
        return {worker_id: frozenset(given) for worker_id, given in self.warm.items()}

    def tick(self, now: float) -> float:
        """Return how much time counts since the last look."""
        elapsed = 0.0 if self._looked_at is None else min(now - self._looked_at, MAX_TICK_S)
        self._looked_at = now
        return elapsed

    def watch(self, worker_ids: list[str], elapsed_s: float) -> dict[str, float]:
        """Look at workers' renewals and return for how long each has been silent."""
        watched: dict[str, _Watched] = {}
        for worker_id in worker_ids:
            presence = self.presences.get(worker_id)
            renewals = presence.renewals if presence else 0
            before = self._watched.get(worker_id)
            if before is not None and before.renewals == renewals and not self.in_hand[worker_id]:
                watched[worker_id] = _Watched(renewals, before.silence_s + elapsed_s)
            else:
                watched[worker_id] = _Watched(renewals)
        self._watched = watched
        return {worker_id: entry.silence_s for worker_id, entry in watched.items()}

    def age(self, attempt_ids: list[str], elapsed_s: float) -> dict[str, float]:
        """Return for how long offers have been open, in time that the leader watched; others are forgotten."""
        self._ages = {
            attempt_id: self._ages[attempt_id] + elapsed_s if attempt_id in self._ages else 0.0
            for attempt_id in attempt_ids
        }
        return dict(self._ages)

    def silence_s(self, worker_id: str) -> float:
        """Return for how long a worker has been silent, as of the last look; 0 if it was heard of since then."""
        watched, presence = self._watched.get(worker_id), self.presences.get(worker_id)
        if watched is None or self.in_hand[worker_id]:
            return 0.0
        if presence is not None and presence.renewals != watched.renewals:
            return 0.0
        return watched.silence_s

    def silent(self, at_least_s: float) -> set[str]:
        """Return who has been silent for so long."""
        suspects = [worker_id for worker_id, watched in self._watched.items() if watched.silence_s >= at_least_s]
        return {worker_id for worker_id in suspects if self.silence_s(worker_id) >= at_least_s}
