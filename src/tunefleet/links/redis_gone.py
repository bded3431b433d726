"""What Redis keeps for workers that are gone, and nobody would ever read: cleared by the servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunefleet.links.redis_keys import Keys


class Gone:
    """Clears each worker once: a killed one when its heartbeat has expired, a removed one at once and with its hash.

    Args:
        redis: The client.
        keys: Names of the fleet's keys.
    """

    def __init__(self, redis: Any, keys: Keys) -> None:
        self._redis, self._keys = redis, keys
        self._known: set[str] = set()
        self._cleared: set[str] = set()

    async def clear(self, known: Mapping[str, bool]) -> None:
        """Clear what has become needless since the last call.

        Args:
            known: The workers that the server knows, and whether each is there.
        """
        for worker_id in sorted(self._known - known.keys()):
            await self._clear(worker_id, self._keys.heartbeat(worker_id), self._keys.worker(worker_id))
            await self._redis.srem(self._keys.elastic_disabled, worker_id)
            self._known.discard(worker_id)
        self._known = set(known)
        away = {worker_id for worker_id, there in known.items() if not there}
        self._cleared &= away
        for worker_id in sorted(away - self._cleared):
            if not await self._redis.exists(self._keys.heartbeat(worker_id)):
                await self._clear(worker_id)
                self._cleared.add(worker_id)

    async def _clear(self, worker_id: str, *more: str) -> None:
        await self._redis.srem(self._keys.ids, worker_id)
        # A dispatch in there has the token of an attempt that is over.
        await self._redis.delete(self._keys.inbox(worker_id), self._keys.commands(worker_id), *more)
