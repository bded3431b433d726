"""One fleet, one store: a server of another store does not join, or workers would hop between two sets of tasks."""

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

# How often a server says that it lives.
TICK_S: Final = 3.0
# How long that is believed.
LEASE_S: Final = 12
_LOOK_S: Final = 0.25
_CONNECT_S: Final = 3.0


class OtherStoreError(MachineError):
    """A server of another store serves the fleet."""


@dataclass(frozen=True, slots=True)
class Store:
    """Whose tasks a server hands out."""

    id: str
    where: str
    url: str = ""


class StoreClaim:
    """A store's word that its server serves a fleet; the server renews it, and it expires with it."""

    def __init__(self, redis: Any, keys: Keys, store: Store, url: str) -> None:
        self._redis, self._keys, self._store, self._url = redis, keys, store, url
        self.outside = False
        """Whether another store has the fleet, as far as this server knows."""

    async def hold(self) -> None:
        """Serve the fleet, or go on to.

        Raises:
            OtherStoreError: If another store's server does.
        """
        if self.outside and await self._there() is None:
            # Who has emptied Redis has not stopped the other server: it comes first.
            await asyncio.sleep(2 * TICK_S)
        other = await self._change(lambda turn: turn.set(self._keys.store, self._said(), ex=LEASE_S), if_none=True)
        if other is not None:
            self._refuse(other)
        self.outside = False

    async def refuse_other(self) -> None:
        """Look once, before this server serves anything; a word that nobody renews is waited for until it expires."""
        first, deadline = await self._there(), time.monotonic() + LEASE_S + TICK_S
        there = first
        while there is not None and there.get("store") != self._store.id:
            if there != first or time.monotonic() > deadline:
                self._refuse(there)
            await asyncio.sleep(_LOOK_S)
            there = await self._there()

    async def drop(self) -> None:
        """Take the word back, if it is still this store's."""
        await self._change(lambda turn: turn.delete(self._keys.store), if_none=False)

    async def _change(self, change: Callable[[Any], object], *, if_none: bool) -> dict[str, str] | None:
        """Change the word if it is this store's, or is not there and `if_none`; return it if it is another store's.

        Nobody can say another one between the look and the change: then it is looked at again.
        """
        async with self._redis.pipeline() as turn:
            while True:
                await turn.watch(self._keys.store)
                there = _read(await turn.get(self._keys.store))
                if there is None and not if_none:
                    return None
                if there is not None and there.get("store") != self._store.id:
                    return there
                turn.multi()
                change(turn)
                try:
                    await turn.execute()
                except WatchError:
                    log.debug("The word of the fleet's store changed meanwhile; it is looked at again.")
                else:
                    return None

    def _said(self) -> str:
        return dumps({"store": self._store.id, "where": self._store.where, "url": self._store.url, "at": now_text()})

    async def _there(self) -> dict[str, str] | None:
        return _read(await self._redis.get(self._keys.store))

    def _refuse(self, there: dict[str, str]) -> None:
        if there.get("store") == self._store.id:
            return
        self.outside = True
        topic, prefix = self._keys.topic, self._keys.prefix
        named = f"topic {topic}{f' and prefix {prefix}' if prefix else ''}"
        raise OtherStoreError(
            f"Another server, {there.get('where', 'somewhere')}, serves the fleet with the {named} in the Redis at "
            f"{shown(self._url)} from another store: workers would hop between the two.",
            hint="Give one of them, and its workers, a TASK_TOPIC or a TUNEFLEET_REDIS_PREFIX of their own.",
        )


def _read(found: str | None) -> dict[str, str] | None:
    if found is None:
        return None
    try:
        told = json.loads(found)
    except ValueError:
        told = None
    return told if isinstance(told, dict) else {"where": "that cannot be read"}


async def refuse_other_store(url: str, keys: Keys, store: Store) -> None:
    """Refuse to start where another store's servers serve the fleet; a Redis that is away refuses nothing."""
    redis: Any = Redis.from_url(
        url, decode_responses=True, encoding_errors="replace", protocol=2,
        socket_timeout=_CONNECT_S, socket_connect_timeout=_CONNECT_S,
        retry=Retry(NoBackoff(), 0),
    )  # fmt: skip
    try:
        await StoreClaim(redis, keys, store, url).refuse_other()
    except (RedisError, OSError) as error:
        log.debug("Whether another store's servers are there is seen later: %r", error)
    finally:
        await redis.aclose()
