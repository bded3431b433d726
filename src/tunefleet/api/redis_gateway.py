"""The server behind the Redis link: the verbs that the HTTP routes of the link call, for workers without a key."""

from __future__ import annotations

import hashlib
import socket

from tunefleet.db.fleet import worker_rows as workers
from tunefleet.db.repositories import controls
from tunefleet.orchestrator.access.permissions import REDIS_WORKER
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.workers import exchange as worker_exchange
from tunefleet.orchestrator.workers import message_payloads
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, RegisterReply, RegisterRequest
from tunefleet.transport.base import address_towards
from tunefleet.transport.redis import fleet_identity
from tunefleet.transport.redis.fleet_identity import Store
from tunefleet.transport.redis.keys import Keys
from tunefleet.transport.redis.server import RedisHub


class CoreDesk:
    """Answers workers that are known by what they registered with."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def register(self, request: RegisterRequest) -> RegisterReply:
        """Take up a worker's process."""
        return await worker_exchange.register(self._core, REDIS_WORKER, request)

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Take what a worker says; answer as soon as there is something to answer."""
        return await worker_exchange.exchange(self._core, REDIS_WORKER, request)

    async def fetch(self, digest: str) -> bytes:
        """Return a message that a worker has put over HTTP."""
        return await message_payloads.fetch(self._core, digest)

    async def keep(self, body: bytes, token: str) -> str:
        """Store a message for who holds the token."""
        return await message_payloads.keep(self._core, body, token)

    async def elastic_disabled(self) -> frozenset[str]:
        """Return the workers that elastic scaling keeps out of the pool."""
        return frozenset(await self._core.read(controls.elastic_disabled))

    async def workers(self) -> dict[str, bool]:
        """Return the workers that are known, and whether each is there."""
        return {row.id: row.status == "online" for row in await self._core.read(workers.all_rows)}


def keys_of(core: Core) -> Keys:
    """Return the names of a server's keys."""
    return Keys(core.settings.topic, core.settings.redis_prefix)


def store_of(core: Core, url: str = "") -> Store:
    """Return what a server has in common with the one before it on its database, and with no other."""
    where = f"on {socket.gethostname()} with its data in {core.settings.data_dir.absolute()}"
    return Store(hashlib.sha256(core.secret + b":store").hexdigest()[:16], where, url)


async def refuse_other_store(core: Core, url: str) -> None:
    """Refuse to start where the servers of another store have the topic."""
    await fleet_identity.refuse_other_store(url, keys_of(core), store_of(core))


def hub_of(core: Core, url: str, here: str | None) -> RedisHub:
    """Return the Redis link of a server."""
    settings = core.settings
    # The same after a restart, so that it finds what it had read; another once the database has another server.
    about = f"{socket.gethostname()}:{settings.data_dir.absolute()}"
    name = hashlib.sha256(core.secret + about.encode()).hexdigest()[:12]
    return RedisHub(url, keys_of(core), CoreDesk(core), name=name, store=store_of(core, address_of(core, url, here)))


def address_of(core: Core, url: str, here: str | None) -> str:
    """Return where workers reach a server by HTTP, which the Redis tells those that were not told."""
    if core.settings.public_base_url is not None:
        return core.settings.public_base_url
    if here is None or core.settings.host not in {"0.0.0.0", "::"}:
        return here or ""
    outward = address_towards(url)
    return here if outward is None else here.replace("[::1]", outward).replace("127.0.0.1", outward)
