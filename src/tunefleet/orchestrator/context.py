"""What every verb works on: store, files, signals, the server's secret, settings, and what is known of the fleet."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection, Database
from tunefleet.db.engine.locks import FolderLock
from tunefleet.db.federations.federation_tokens import TokenRow
from tunefleet.db.fleet import servers
from tunefleet.observability.spans import Spans
from tunefleet.orchestrator.access.login_throttle import Tries
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.chat.session_state import Talks
from tunefleet.orchestrator.clusters.providers import Engines
from tunefleet.orchestrator.ha.leadership import Leading, fence
from tunefleet.orchestrator.observability.counters import Meters
from tunefleet.orchestrator.preflight.model_configs import Configurations
from tunefleet.orchestrator.pubsub import Signals
from tunefleet.orchestrator.workers.presence import Fleet
from tunefleet.settings import ServerSettings

T = TypeVar("T")
S = TypeVar("S")
KEYS: Final = "keys"
"""Woken when a key or a federation's token is taken back: no server may know it any more."""
_LOOKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Clock:
    """Where the time comes from."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class KeyCache:
    """Keys and federations' tokens that were looked up, and when keys were used; emptied when one of them changes."""

    actors: dict[str, Actor] = field(default_factory=dict)
    federations: dict[str, TokenRow] = field(default_factory=dict)
    projects: dict[str, str] = field(default_factory=dict)
    """Federation → its project, which stays."""
    used_at: dict[str, float] = field(default_factory=dict)

    def forget(self) -> None:
        """Look every key up anew; a look-up that is on its way is kept by nobody."""
        # Another dictionary, not an emptied one: who looked before the change puts what it found into the old one.
        self.actors = {}
        self.federations = {}


@dataclass(slots=True)
class SweepMark:
    """Up to where the sweep has come."""

    ready_at: float = 0.0
    flushed_at: float | None = None
    forgot_loads_at: float = 0.0
    forgot_usage_at: float = 0.0


@dataclass(slots=True)
class Verified:
    """Which stored files this server has read, and where the reading in the background stands.

    Args:
        at: Digest → when it was found whole, on the monotonic clock.
    """

    at: dict[str, float] = field(default_factory=dict)
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class JoinWait:
    """Why the files of a spread task's parts are not one file yet."""

    failures: int
    until: float
    why: str


@dataclass(slots=True)
class Core:
    """One server's state; `opening.open_core` makes it."""

    settings: ServerSettings
    db: Database
    blobs: BlobStore
    signals: Signals
    secret: bytes
    clock: Clock
    fleet: Fleet = field(default_factory=Fleet)
    leading: Leading = field(default_factory=Leading)
    keys: KeyCache = field(default_factory=KeyCache)
    sweep: SweepMark = field(default_factory=SweepMark)
    pass_s: float = 0.0
    """What the last pass of placement took of a processor."""
    joins: dict[int, JoinWait] = field(default_factory=dict)
    archiving: WeakValueDictionary[tuple[int, int], asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """Held by who makes the archive of a federation's version, by both numbers."""
    looks: dict[tuple[str, str, int], asyncio.Future[Any]] = field(default_factory=dict)
    """For newest versions, while they are on their way: by project, federation and what had been heard of it."""
    configurations: Configurations = field(default_factory=Configurations)
    talks: Talks = field(default_factory=Talks)
    tries: Tries = field(default_factory=Tries)
    reading: set[str] = field(default_factory=set)
    """Names of the arriving files that this server reads back now."""
    direct_again_at: float = 0.0
    """Until then, on the monotonic clock, no worker sends to the store itself, whose service refuses what it takes."""
    streams: Counter[str] = field(default_factory=Counter)
    """How many of the page's streams are open, by key."""
    meters: Meters | None = None
    """What is counted; null where nobody is to ask."""
    engines: Engines = field(default_factory=Engines)
    """What gives nodes to tasks that ask for them."""
    spans: Spans | None = None
    """Where the spans of tasks go; null if nowhere."""
    verified: Verified = field(default_factory=Verified)
    """Which stored files were read lately, and are whole."""
    looking: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, _LOOKERS, "look"))
    """Where files of rows are looked through."""
    _states: dict[type[Any], Any] = field(default_factory=dict)
    _locks: Sequence[FolderLock] = ()

    def state(self, kind: type[S], make: Callable[[], S] | None = None) -> S:
        """Return what a domain remembers of this server, which only the domain looks into."""
        if kind not in self._states:
            self._states[kind] = (make or kind)()
        found: S = self._states[kind]
        return found

    async def write(self, operation: Callable[[Connection], T]) -> T:
        """Run an operation in the writer thread; it is committed when this returns.

        Raises:
            NotLeadingError: If only the leader may do this, and another server leads now.
        """
        epoch = fence()
        if epoch is not None:
            operation = partial(servers.fenced, operation=operation, epoch=epoch)
        if self.meters is None:
            return await asyncio.wrap_future(self.db.write(operation))
        with self.meters.write_s.time():
            return await asyncio.wrap_future(self.db.write(operation))

    async def read(self, operation: Callable[[Connection], T]) -> T:
        """Run an operation on a snapshot, in a reader thread."""
        return await asyncio.wrap_future(self.db.read(operation))

    def close(self) -> None:
        """Wake everybody, finish what is queued and let go of database and data folder."""
        self.signals.close()
        self.looking.shutdown(cancel_futures=True)
        self.db.close()
        self.blobs.close()
        if self.spans is not None:
            self.spans.close()
        for lock in self._locks:
            lock.release()
