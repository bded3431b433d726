"""In-process pub/sub: wake coroutines from any thread without losing a notification.

Each topic has a version that only grows. A waiter passes the version it knows; if there is a newer one it returns
immediately. Notifications carry no data: a waiter that wakes reads the store.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from typing import Final

# Maximum number of versions kept. Each task ever run has a topic, so old ones are dropped; each time all waiters wake
# once for nothing, so it must be far above the number of workers and running tasks.
MAX_TOPICS: Final = 1 << 16


class PubSub:
    """Topics and their waiters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._floor = 0
        self._versions: dict[str, int] = {}
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the server is shutting down: every wait returns immediately."""
        return self._closed

    def version(self, topic: str) -> int:
        """Return a number that grows when a topic is notified; read it before you read the store.

        It may also grow without a notification, when old topics are dropped.
        """
        return self._versions.get(topic, self._floor)

    def notify(self, *topics: str) -> None:
        """Wake the waiters of these topics; thread-safe."""
        with self._lock:
            waiters = [waiter for topic in topics for waiter in self._bump(topic)]
        # Outside the lock: the event loop may take it in `wait`.
        _wake(waiters)

    def notify_all(self) -> None:
        """Wake all waiters, when it is not known what changed; thread-safe."""
        with self._lock:
            waiters = [waiter for topic in list(self._waiters) for waiter in self._bump(topic)]
            # Raise all versions, for callers that are reading the store and do not wait yet.
            self._floor = self._count = self._count + 1
            self._versions.clear()
        _wake(waiters)

    async def wait(self, topic: str, timeout_s: float, since: int | None = None) -> int:
        """Wait until a topic has a newer version, or the timeout.

        Args:
            since: The version that the caller knows; default: the current one, which misses a change between the
                caller's read of the store and this call.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            known = self.version(topic) if since is None else since
            if self._closed or self.version(topic) != known:
                return self.version(topic)
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.setdefault(topic, set()).add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=max(0.0, timeout_s))
        finally:
            self._forget(topic, waiter)
        return self.version(topic)

    async def wait_any(self, since: Mapping[str, int], timeout_s: float) -> None:
        """Wait until one of several topics has a newer version than the caller knows, or the timeout.

        Args:
            since: Topic → the version that the caller knows.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed or any(self.version(topic) != known for topic, known in since.items()):
                return
            waiter: asyncio.Future[None] = loop.create_future()
            for topic in since:
                self._waiters.setdefault(topic, set()).add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=max(0.0, timeout_s))
        finally:
            for topic in since:
                self._forget(topic, waiter)

    def close(self) -> None:
        """Wake all waiters, and end every later wait immediately."""
        with self._lock:
            self._closed = True
            waiters = [waiter for topic in list(self._waiters) for waiter in self._bump(topic)]
        _wake(waiters)

    def _bump(self, topic: str) -> set[asyncio.Future[None]]:
        self._count += 1
        if len(self._versions) >= MAX_TOPICS:
            # All topics get a version that no waiter knows yet, so no notification is lost.
            self._floor = self._count
            self._versions.clear()
            self._count += 1
        self._versions[topic] = self._count
        return self._waiters.pop(topic, set())

    def _forget(self, topic: str, waiter: asyncio.Future[None]) -> None:
        with self._lock:
            waiting = self._waiters.get(topic)
            if waiting is not None:
                waiting.discard(waiter)
                if not waiting:
                    del self._waiters[topic]


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        loop = waiter.get_loop()
        if not loop.is_closed():
            # Futures are not thread-safe, and `notify` is called from the store's threads.
            loop.call_soon_threadsafe(_release, waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
