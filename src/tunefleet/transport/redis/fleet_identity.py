"""One fleet, one database: otherwise workers would switch between the task sets of two databases."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, WatchError

from tunefleet.errors import MachineError
from tunefleet.transport.redis.chunking import dumps, now_text
from tunefleet.transport.redis.errors import shown
from tunefleet.transport.redis.keys import Keys

log = logging.getLogger(__name__)

# How often a server renews its keys.
TICK_S: Final = 3.0
# How long a key is valid without renewal.
LEASE_S: Final = 12
_LOOK_S: Final = 0.25
_CONNECT_S: Final = 3.0


class OtherStoreError(MachineError):
    """A server of another database serves the fleet."""


@dataclass(frozen=True, slots=True)
class Store:
    """Identity of a server's database."""

    id: str
    where: str
    url: str = ""


class StoreClaim:
    """A database's claim to serve a fleet; its servers renew it, and it expires after them."""

    def __init__(self, redis: Any, keys: Keys, store: Store, url: str) -> None:
        self._redis, self._keys, self._store, self._url = redis, keys, store, url
        self.outside = False
        """Whether another database holds the fleet, as far as this server knows."""

    async def hold(self) -> None:
        """Acquire or renew the claim.

        Raises:
            OtherStoreError: If a server of another database holds it.
        """
        if self.outside and await self._current() is None:
            # Redis was emptied while the other server is still running: let it renew its claim first.
            await asyncio.sleep(2 * TICK_S)
        other = await self._change(
            lambda turn: turn.set(self._keys.store, self._claim_json(), ex=LEASE_S), if_none=True
        )
        if other is not None:
            self._refuse(other)
        self.outside = False

    async def refuse_other(self) -> None:
        """Check the claim before this server starts; waits for a claim that is not renewed to expire."""
        first, deadline = await self._current(), time.monotonic() + LEASE_S + TICK_S
        current = first
        while current is not None and current.get("store") != self._store.id:
            if current != first or time.monotonic() > deadline:
                self._refuse(current)
            await asyncio.sleep(_LOOK_S)
            current = await self._current()

    async def drop(self) -> None:
        """Delete the claim, if it is still this database's."""
        await self._change(lambda turn: turn.delete(self._keys.store), if_none=False)

    async def _change(self, change: Callable[[Any], object], *, if_none: bool) -> dict[str, str] | None:
        """Change the claim if it is this database's, or missing and `if_none`; return it if it is another's.

        WATCH makes the change fail if the claim changes in between; it is then read again.
        """
        async with self._redis.pipeline() as turn:
            while True:
                await turn.watch(self._keys.store)
                current = _read(await turn.get(self._keys.store))
                if current is None and not if_none:
                    return None
                if current is not None and current.get("store") != self._store.id:
                    return current
                turn.multi()
                change(turn)
                try:
                    await turn.execute()
                except WatchError:
                    log.debug("The fleet's claim changed meanwhile; reading it again.")
                else:
                    return None

    def _claim_json(self) -> str:
        return dumps({"store": self._store.id, "where": self._store.where, "url": self._store.url, "at": now_text()})

    async def _current(self) -> dict[str, str] | None:
        return _read(await self._redis.get(self._keys.store))

    def _refuse(self, current: dict[str, str]) -> None:
        if current.get("store") == self._store.id:
            return
        self.outside = True
        topic, prefix = self._keys.topic, self._keys.prefix
        named = f"topic {topic}{f' and prefix {prefix}' if prefix else ''}"
        raise OtherStoreError(
            f"Another server, {current.get('where', 'at an unknown location')}, serves the fleet with the "
            f"{named} in the Redis at "
            f"{shown(self._url)} from another database: workers would switch between the two.",
            hint="Give one of them, and its workers, a separate TUNEFLEET_TASK_TOPIC or TUNEFLEET_REDIS_PREFIX.",
        )


def _read(found: str | None) -> dict[str, str] | None:
    if found is None:
        return None
    try:
        claim = json.loads(found)
    except ValueError:
        claim = None
    return claim if isinstance(claim, dict) else {"where": "at an unreadable location"}


async def refuse_other_store(url: str, keys: Keys, store: Store) -> None:
    """Refuse to start if servers of another database serve the fleet; an unreachable Redis refuses nothing."""
    redis: Any = Redis.from_url(
        url, decode_responses=True, encoding_errors="replace", protocol=2,
        socket_timeout=_CONNECT_S, socket_connect_timeout=_CONNECT_S,
        retry=Retry(NoBackoff(), 0),
    )  # fmt: skip
    try:
        await StoreClaim(redis, keys, store, url).refuse_other()
    except (RedisError, OSError) as error:
        log.debug("Cannot check for servers of another database yet: %r", error)
    finally:
        await redis.aclose()
