"""The server context: store, files, pub/sub, secret, settings and the in-memory state of the fleet."""

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
from tunefleet.orchestrator.access.login_throttle import LoginThrottle
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.chat.session_state import ChatSessions
from tunefleet.orchestrator.counters import Meters
from tunefleet.orchestrator.fleet.engines import Engines
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.leadership import Leadership, fence
from tunefleet.orchestrator.preflight.model_configs import Configurations
from tunefleet.orchestrator.pubsub import PubSub
from tunefleet.settings import ServerSettings

T = TypeVar("T")
S = TypeVar("S")
KEYS: Final = "keys"
"""Topic of revoked keys and federation tokens: every server drops its cached keys."""
_LOOKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Clock:
    """The time sources; replaced in tests."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class KeyCache:
    """Cache of keys and federation tokens, with the last use of keys; cleared when one of them changes."""

    actors: dict[str, Actor] = field(default_factory=dict)
    federations: dict[str, TokenRow] = field(default_factory=dict)
    projects: dict[str, str] = field(default_factory=dict)
    """Federation → its project, which never changes."""
    used_at: dict[str, float] = field(default_factory=dict)

    def forget(self) -> None:
        """Clear the cache, including results of look-ups that are in progress."""
        # New dictionaries, not `clear()`: a look-up that started before the change stores its result in the old one.
        self.actors = {}
        self.federations = {}


@dataclass(slots=True)
class SweepMark:
    """Times of the reaper's last steps."""

    ready_at: float = 0.0
    flushed_at: float | None = None
    forgot_loads_at: float = 0.0
    forgot_usage_at: float = 0.0


@dataclass(slots=True)
class Verified:
    """Progress of the background verification of stored files.

    Args:
        at: Digest → when it was found intact, on the monotonic clock.
        cursor: The digest that was verified last.
    """

    at: dict[str, float] = field(default_factory=dict)
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class JoinWait:
    """Why the files of a sharded task have not been merged yet."""

    failures: int
    until: float
    why: str


@dataclass(slots=True)
class ServerContext:
    """The context of one server; `bootstrap.open_core` creates it."""

    settings: ServerSettings
    db: Database
    blobs: BlobStore
    signals: PubSub
    secret: bytes
    clock: Clock
    fleet: Fleet = field(default_factory=Fleet)
    leading: Leadership = field(default_factory=Leadership)
    keys: KeyCache = field(default_factory=KeyCache)
    sweep: SweepMark = field(default_factory=SweepMark)
    cycle_s: float = 0.0
    """CPU time of the last scheduling cycle."""
    joins: dict[int, JoinWait] = field(default_factory=dict)
    archiving: WeakValueDictionary[tuple[int, int], asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """Locks against building the archive of a federation's version twice, by federation and version number."""
    looks: dict[tuple[str, str, int], asyncio.Future[Any]] = field(default_factory=dict)
    """Pending look-ups of newest versions, by project, federation and the pub/sub version when they started."""
    configurations: Configurations = field(default_factory=Configurations)
    talks: ChatSessions = field(default_factory=ChatSessions)
    tries: LoginThrottle = field(default_factory=LoginThrottle)
    reading: set[str] = field(default_factory=set)
    """Names of the uploads that this server is verifying."""
    direct_again_at: float = 0.0
    """Until then, on the monotonic clock, direct uploads are off, because the object store refused one."""
    streams: Counter[str] = field(default_factory=Counter)
    """Number of open event streams of the web UI, by key."""
    meters: Meters | None = None
    """Prometheus metrics; None if they are switched off."""
    engines: Engines = field(default_factory=Engines)
    """The engines that allocate cluster nodes."""
    spans: Spans | None = None
    """The exporter of task spans; None without an endpoint."""
    verified: Verified = field(default_factory=Verified)
    """Stored files that were verified recently."""
    looking: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, _LOOKERS, "look"))
    """Threads for scanning dataset files."""
    _states: dict[type[Any], Any] = field(default_factory=dict)
    _locks: Sequence[FolderLock] = ()

    def state(self, kind: type[S], make: Callable[[], S] | None = None) -> S:
        """Return a domain's own state on this server; created on the first call."""
        if kind not in self._states:
            self._states[kind] = (make or kind)()
        found: S = self._states[kind]
        return found

    async def write(self, operation: Callable[[Connection], T]) -> T:
        """Run an operation in the writer thread; it is committed when this returns.

        Raises:
            NotLeadingError: If only the leader may do this, and another server leads now.
        """
        # The fencing token is checked in the same transaction: a server that lost leadership must not commit.
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
        """Wake all waiters, finish queued writes, and release the database and the data folder."""
        # First, so that requests held open end; the folder locks last, when nothing is written any more.
        self.signals.close()
        self.looking.shutdown(cancel_futures=True)
        self.db.close()
        self.blobs.close()
        if self.spans is not None:
            self.spans.close()
        for lock in self._locks:
            lock.release()
