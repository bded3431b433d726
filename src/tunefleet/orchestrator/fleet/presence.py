"""The leader's in-memory state of workers between exchanges; the store has what must survive it.

A lease renewal is a counter. Silence is measured on the leader's own monotonic clock and only while it watches: after a
start, a suspended process or an outage, no worker is lost because of time that the leader has not observed.
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

# The fixed session of agents, which poll; workers have random ones.
AGENT_SESSION: Final = "agent"
# A longer gap between two ticks (a suspended process, a blocked loop) counts as this much silence.
MAX_TICK_S: Final = 2.0
# Free memory or disk must grow by this much to trigger a scheduling cycle.
MIN_FREED_BYTES: Final = 256 << 20
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
# An item of a reply is sent again after this time until the worker has acted on it.
RESEND_AFTER_S: Final = 1.0


@dataclass(slots=True)
class Presence:
    """One session of a worker, since its first message.

    Args:
        limits: Slot class → maximum number of attempts; replaced and never mutated, since snapshots share it.
        sent_at: Key of an item in a reply → when it was sent.
        stalled: The attempts reported as stalled; None before the first report.
        delivering: Attempts whose job has ended, so that they take no slot, and why each is held up. Part of every
            exchange, so that a new leader knows them after the first.
    """

    session: str
    renewals: int = 0
    polls: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    sent_at: dict[str, float] = field(default_factory=dict)
    lost: bool = False
    stalled: frozenset[str] | None = None
    delivering: Mapping[str, str] = field(default_factory=dict)
    fetching: Mapping[str, str] = field(default_factory=dict)
    load: Load | None = None
    load_at: float = 0.0
    outdated: bool = False
    project: str = DEFAULT_PROJECT

    def record_load(self, load: Load | None, at: float, *, ended: bool, delivering: Mapping[str, str] = _NONE) -> bool:
        """Store a load report and the attempts that only upload; return whether capacity became free.

        Args:
            load: The load; None if the message has none.
            ended: Whether a job has ended, which outdates the last load.
            delivering: Attempt → why its upload is held up; empty if it is not.
        """
        newly_delivering = not delivering.keys() <= self.delivering.keys()
        self.delivering, ended = delivering, ended or newly_delivering
        if load is None:
            self.outdated = self.outdated or ended
            return newly_delivering
        before, self.load, self.load_at, self.outdated = self.load, load, at, ended
        return newly_delivering or before is None or _has_more_free(load, before)

    def has_unsent(self, keys: set[str], now: float) -> bool:
        """Whether one of these items was not sent recently."""
        return any(now - self.sent_at.get(key, -RESEND_AFTER_S) >= RESEND_AFTER_S for key in keys)

    def record_sent(self, keys: set[str], now: float) -> None:
        """Record that these items are sent now; forget all others."""
        self.sent_at = {key: now for key in keys}


@dataclass(slots=True)
class Agent:
    """The in-memory state of an agent between two polls.

    Args:
        missed: Its attempts that it does not report → since when, on the monotonic clock.
    """

    owner: str
    about: tuple[str, ...] = ()
    leased: bool = False
    load: dict[str, Any] = field(default_factory=dict)
    holding: set[str] = field(default_factory=set)
    heard: set[str] = field(default_factory=set)
    missed: dict[str, float] = field(default_factory=dict)


def _has_more_free(load: Load, before: Load) -> bool:
    """Whether memory, disk or a GPU has become free, beyond normal fluctuation."""
    known = {gpu.uuid: gpu for gpu in before.gpus}
    freed = (gpu for gpu in load.gpus if gpu.uuid in known and _gpu_freed(gpu, known[gpu.uuid]))
    more = max(load.memory_free_bytes - before.memory_free_bytes, load.disk_free_bytes - before.disk_free_bytes)
    return more > MIN_FREED_BYTES or any(True for _ in freed)


def _gpu_freed(gpu: GpuLoad, before: GpuLoad) -> bool:
    if gpu.in_use_by is None and before.in_use_by is not None:
        return True
    return (gpu.memory_free_bytes or 0) - (before.memory_free_bytes or 0) > MIN_FREED_BYTES


@dataclass(slots=True)
class _Watched:
    renewals: int
    silence_s: float = 0.0


@dataclass(slots=True)
class ElasticMark:
    """The state of elastic scaling.

    Args:
        changed_at: Worker → when it was last put on standby or activated.
    """

    looked_at: float | None = None
    resting: set[str] = field(default_factory=set)
    changed_at: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Fleet:
    """All sessions, and how long each worker has been silent."""

    presences: dict[str, Presence] = field(default_factory=dict)
    seen_at: dict[str, float] = field(default_factory=dict)
    """Worker id → wall-clock time, not yet stored."""
    load_reports: dict[str, tuple[float, Load]] = field(default_factory=dict)
    """Worker id → time and load of its last report, on the wall clock; not yet stored."""
    agents: dict[str, Agent] = field(default_factory=dict)
    """Agents by worker id."""
    warm: dict[str, dict[str, float]] = field(default_factory=dict)
    """Worker id → model or dataset of a task that it was given → when, on the wall clock."""
    reserved: dict[str, str] = field(default_factory=dict)
    """Worker id → the waiting task that its capacity is reserved for, as of the last scheduling cycle."""
    restarted_at: dict[str, float] = field(default_factory=dict)
    """Worker id → Unix time of its last restart since this server started."""
    joins: dict[int, str] = field(default_factory=dict)
    """On a follower: `seq` of a sharded task → what its shards wait for; see `Core.joins`."""
    in_progress: Counter[str] = field(default_factory=Counter)
    """Worker id → number of its messages in progress: then the server is slow, not the worker silent."""
    worked_at: dict[str, float] = field(default_factory=dict)
    """Worker id → when it was last busy or, if never, first seen; on the monotonic clock."""
    elastic: ElasticMark = field(default_factory=ElasticMark)
    _watched: dict[str, _Watched] = field(default_factory=dict)
    _ages: dict[str, float] = field(default_factory=dict)
    _looked_at: float | None = None

    def renew(self, worker_id: str, presence: Presence, wall: float) -> None:
        """Renew a worker's lease."""
        self.presences[worker_id] = presence
        presence.renewals += 1
        self.seen_at[worker_id] = wall

    @contextmanager
    def processing(self, worker_id: str) -> Iterator[None]:
        """Count a worker as live while its message is being processed."""
        self.in_progress[worker_id] += 1
        try:
            yield
        finally:
            self.in_progress[worker_id] -= 1
            if not self.in_progress[worker_id]:
                del self.in_progress[worker_id]

    def forget(self, worker_id: str) -> None:
        """Drop all state of a removed worker."""
        self.presences.pop(worker_id, None)
        self.agents.pop(worker_id, None)
        self.warm.pop(worker_id, None)
        self.restarted_at.pop(worker_id, None)
        self.worked_at.pop(worker_id, None)
        self.elastic.changed_at.pop(worker_id, None)
        self._watched.pop(worker_id, None)
        self.seen_at.pop(worker_id, None)
        self.load_reports.pop(worker_id, None)

    def give(self, worker_id: str, names: Iterable[str], at: float) -> None:
        """Record the models and datasets of a task that a worker is given, on the wall clock."""
        for name in names:
            self.warm.setdefault(worker_id, {})[name] = at

    def warm_since(self, since: float) -> dict[str, frozenset[str]]:
        """Return the models and datasets that workers were given since a time; drop older entries."""
        for worker_id in [id_ for id_, given in self.warm.items() if min(given.values(), default=since) <= since]:
            left = {name: at for name, at in self.warm[worker_id].items() if at > since}
            if left:
                self.warm[worker_id] = left
            else:
                del self.warm[worker_id]
        return {worker_id: frozenset(given) for worker_id, given in self.warm.items()}

    def tick(self, now: float) -> float:
        """Return the time since the last tick, capped at `MAX_TICK_S`."""
        elapsed = 0.0 if self._looked_at is None else min(now - self._looked_at, MAX_TICK_S)
        self._looked_at = now
        return elapsed

    def watch(self, worker_ids: list[str], elapsed_s: float) -> dict[str, float]:
        """Compare the renewals with the last tick, and return how long each worker has been silent."""
        watched: dict[str, _Watched] = {}
        for worker_id in worker_ids:
            presence = self.presences.get(worker_id)
            renewals = presence.renewals if presence else 0
            before = self._watched.get(worker_id)
            if before is not None and before.renewals == renewals and not self.in_progress[worker_id]:
                watched[worker_id] = _Watched(renewals, before.silence_s + elapsed_s)
            else:
                watched[worker_id] = _Watched(renewals)
        self._watched = watched
        return {worker_id: entry.silence_s for worker_id, entry in watched.items()}

    def age(self, attempt_ids: list[str], elapsed_s: float) -> dict[str, float]:
        """Return how long offers have been open, in time that the leader has observed; drop all others."""
        self._ages = {
            attempt_id: self._ages[attempt_id] + elapsed_s if attempt_id in self._ages else 0.0
            for attempt_id in attempt_ids
        }
        return dict(self._ages)

    def silence_s(self, worker_id: str) -> float:
        """Return how long a worker has been silent as of the last tick; 0 if it has reported since."""
        watched, presence = self._watched.get(worker_id), self.presences.get(worker_id)
        if watched is None or self.in_progress[worker_id]:
            return 0.0
        if presence is not None and presence.renewals != watched.renewals:
            return 0.0
        return watched.silence_s

    def silent(self, at_least_s: float) -> set[str]:
        """Return the workers that have been silent for at least `at_least_s`."""
        suspects = [worker_id for worker_id, watched in self._watched.items() if watched.silence_s >= at_least_s]
        return {worker_id for worker_id in suspects if self.silence_s(worker_id) >= at_least_s}
