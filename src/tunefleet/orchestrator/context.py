"""The server context: what every domain needs, and a handle to each domain's own state in memory.

The context knows no domain: each keeps its state in a class of its own, which `ServerContext.state` creates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection, Database
from tunefleet.db.engine.locks import FolderLock
from tunefleet.db.fleet import servers
from tunefleet.observability.spans import Spans
from tunefleet.orchestrator.counters import Meters
from tunefleet.orchestrator.leadership import Leadership, fence
from tunefleet.orchestrator.pubsub import PubSub
from tunefleet.settings import ServerSettings

T = TypeVar("T")
S = TypeVar("S")
_LOOKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Clock:
    """The time sources; replaced in tests."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class ServerContext:
    """The context of one server; `bootstrap.open_core` creates it."""

    settings: ServerSettings
    db: Database
    blobs: BlobStore
    signals: PubSub
    secret: bytes
    clock: Clock
    leading: Leadership = field(default_factory=Leadership)
    meters: Meters | None = None
    """Prometheus metrics; None if they are switched off."""
    spans: Spans | None = None
    """The exporter of task spans; None without an endpoint."""
    dataset_threads: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, _LOOKERS, "look"))
    """Threads for scanning dataset files."""
    _states: dict[type[Any], Any] = field(default_factory=dict)
    _locks: Sequence[FolderLock] = ()

    def state(self, kind: type[S], make: Callable[[], S] | None = None) -> S:
        """Return a domain's own state on this server; created on the first call."""
        found: S | None = self._states.get(kind)
        # `setdefault`: two threads that ask first get the same one.
        return found if found is not None else self._states.setdefault(kind, (make or kind)())

    def put_state(self, state: object) -> None:
        """Replace a domain's state by a new one."""
        self._states[type(state)] = state

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
        self.dataset_threads.shutdown(cancel_futures=True)
        self.db.close()
        self.blobs.close()
        if self.spans is not None:
            self.spans.close()
        for lock in self._locks:
            lock.release()
