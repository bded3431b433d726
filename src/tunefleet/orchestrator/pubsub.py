"""Wake coroutines when something changed, from any thread, without losing a change that comes early.

Each topic has a version that only grows. A waiter says which version it knows; if there is a newer one it returns at
once. Nothing is sent along: who wakes looks at the store.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from typing import Final

# How many topics have a version of their own. There is a topic for each task ever run: old ones are forgotten.
#
# Each time everybody looks in vain once, so that it must be many more than there are workers and tasks under way.
#
MAX_TOPICS: Final = 1 << 16


class Signals:
    """Topics and who waits for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._floor = 0
        self._versions: dict[str, int] = {}
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the server is about to end: every wait returns at once."""
        return self._closed

    def version(self, topic: str) -> int:
        """Return a number that grows when a topic is notified; read it before you look at the store.

        It may grow without a notification too, when topics are forgotten: who wakes then looks in vain, once.
        """
        return self._versions.get(topic, self._floor)

    def notify(self, *topics: str) -> None:
        """Wake who waits for these topics; safe in any thread."""
        with self._lock:
            waiters = [waiter for topic in topics for waiter in self._bump(topic)]
        _wake(waiters)

    def notify_all(self) -> None:
        """Wake everybody: what changed is not known; safe in any thread."""
        with self._lock:
            waiters = [waiter for topic in list(self._waiters) for waiter in self._bump(topic)]
            # Also who looks at the store just now and does not wait yet.
            self._floor = self._count = self._count + 1
            self._versions.clear()
        _wake(waiters)

    async def wait(self, topic: str, timeout_s: float, since: int | None = None) -> int:
        """Wait until a topic has a newer version, or the time is over.

        Args:
            since: The version that the caller knows; default: the one when the call starts, so that a change between
                the caller's look at the store and this call is missed until the next one.
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
        """Wait until one of several topics has a newer version than the caller knows, or the time is over.

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
        """Wake everybody, for good."""
        with self._lock:
            self._closed = True
            waiters = [waiter for topic in list(self._waiters) for waiter in self._bump(topic)]
        _wake(waiters)

    def _bump(self, topic: str) -> set[asyncio.Future[None]]:
        self._count += 1
        if len(self._versions) >= MAX_TOPICS:
            # Every topic now has a version that nobody knows yet: nobody sleeps through this.
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
            loop.call_soon_threadsafe(_release, waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
