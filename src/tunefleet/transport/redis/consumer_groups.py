"""The servers' consumer group: creation, reading, acknowledging, and claiming entries of dead servers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import ResponseError

from tunefleet.transport.redis.chunking import Entry
from tunefleet.transport.redis.keys import EXCHANGE, REGISTRATION, Keys

_CLAIMED: Final = 256
_FORGET_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An entry of an event stream.

    Args:
        id: Its id: Redis' time in milliseconds and a number.
    """

    stream: str
    id: str
    fields: Entry

    @property
    def worker_id(self) -> str:
        """The sender."""
        return self.fields.get("worker_id", "")

    @property
    def order(self) -> tuple[int, int]:
        """Sort key of the entry's time; comparable within one stream."""
        return order_of(self.id)

    def asks(self, topic: str) -> bool:
        """Return whether it expects a reply from this fleet's servers."""
        kind = self.fields.get("type")
        return kind == EXCHANGE or (kind == REGISTRATION and self.fields.get("topic") == topic)


def order_of(entry_id: str) -> tuple[int, int]:
    """Return the sort key of an entry id; comparable within one stream."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


def _streams(keys: Keys) -> tuple[str, str]:
    return keys.events, keys.worker_events


async def make(redis: Any, keys: Keys) -> None:
    """Create missing groups from the start of the streams, so that earlier entries are read, too."""
    for stream in _streams(keys):
        try:
            await redis.execute_command("XGROUP", "CREATE", stream, keys.group, "0", "MKSTREAM")
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
    # Missing later means that Redis was emptied, and the groups must be created again.
    await redis.set(keys.epoch, secrets.token_hex(8), nx=True)


async def read(redis: Any, keys: Keys, name: str, *, count: int, block_s: float) -> list[StreamEntry]:
    """Return new entries for this server."""
    block, streams = ("BLOCK", int(block_s * 1000)), _streams(keys)
    return await _read(redis, keys, name, "COUNT", count, *block, "STREAMS", *streams, *(">" for _ in streams))


async def backlog(redis: Any, keys: Keys, name: str, *, count: int) -> list[StreamEntry]:
    """Return the entries that this server had read and not acknowledged."""
    found: list[StreamEntry] = []
    for stream in _streams(keys):
        after = "0"
        while batch := await _read(redis, keys, name, "COUNT", count, "STREAMS", stream, after):
            found += batch
            after = batch[-1].id
    return found


async def _read(redis: Any, keys: Keys, name: str, *arguments: Any) -> list[StreamEntry]:
    found = await redis.execute_command("XREADGROUP", "GROUP", keys.group, name, *arguments)
    return [StreamEntry(stream, id_, fields or {}) for stream, entries in found or () for id_, fields in entries]


async def done(redis: Any, keys: Keys, found: Iterable[StreamEntry], *, delete: bool) -> None:
    """Acknowledge entries."""
    by_stream: dict[str, list[str]] = {}
    for each in found:
        by_stream.setdefault(each.stream, []).append(each.id)
    if not by_stream:
        return
    commands = redis.pipeline(transaction=False)
    for stream, ids in by_stream.items():
        commands.execute_command("XACK", stream, keys.group, *ids)
        if delete:
            commands.execute_command("XDEL", stream, *ids)
    await commands.execute()


async def claim(redis: Any, keys: Keys, name: str) -> list[StreamEntry]:
    """Claim the unacknowledged entries of dead servers."""
    found: list[StreamEntry] = []
    for stream in _streams(keys):
        for consumer in await redis.xinfo_consumers(stream, keys.group):
            other = consumer["name"]
            # A live server renews its key every few seconds; only entries of a server without one are claimed.
            if other == name or await redis.exists(keys.server(other)):
                continue
            if consumer["pending"]:
                pending = await redis.xpending_range(stream, keys.group, "-", "+", _CLAIMED, consumername=other)
                ids = [each["message_id"] for each in pending]
                taken = await redis.xclaim(stream, keys.group, name, 0, ids) if ids else []
                found += [StreamEntry(stream, id_, fields or {}) for id_, fields in taken if id_]
            elif consumer["idle"] > _FORGET_S * 1000:
                await redis.execute_command("XGROUP", "DELCONSUMER", stream, keys.group, other)
    return found


async def age_s(redis: Any, found: StreamEntry) -> float:
    """Return the age of an entry, by Redis' clock if this machine's clock seems to differ."""
    age = time.time() - found.order[0] / 1000
    if 0 <= age < 1.0:
        return age
    seconds, microseconds = await redis.time()
    return float(seconds) + float(microseconds) / 1e6 - found.order[0] / 1000


class WorkerCleanup:
    """Cleans up after each worker once: when a killed one's heartbeat expires, immediately after a removal."""

    def __init__(self, redis: Any, keys: Keys) -> None:
        self._redis, self._keys = redis, keys
        self._known: set[str] = set()
        self._cleared: set[str] = set()

    async def clear(self, known: Mapping[str, bool]) -> None:
        """Clean up after workers that have gone since the last call."""
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
        # A dispatch in the inbox contains the token of an attempt that is over.
        await self._redis.delete(self._keys.inbox(worker_id), self._keys.commands(worker_id), *more)
