"""The server side of the Redis transport: the service calls of the HTTP exchange routes, for workers without a key."""

from __future__ import annotations

import hashlib
import socket

from tunefleet.db.fleet import worker_rows
from tunefleet.db.fleet import worker_rows as workers
from tunefleet.orchestrator.access.permissions import REDIS_WORKER
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.workers import exchange
from tunefleet.orchestrator.workers import exchange as worker_exchange
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, RegisterReply, RegisterRequest
from tunefleet.transport.base import address_towards
from tunefleet.transport.redis import fleet_identity
from tunefleet.transport.redis.fleet_identity import Store
from tunefleet.transport.redis.keys import Keys
from tunefleet.transport.redis.server import RedisHub


class RedisWorkerService:
    """Serves workers, which are identified by their registration."""

    def __init__(self, core: ServerContext) -> None:
        self._core = core

    async def register(self, request: RegisterRequest) -> RegisterReply:
        """Register a worker process."""
        return await worker_exchange.register(self._core, REDIS_WORKER, request)

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Process a worker's report; return when there is something to send."""
        return await worker_exchange.exchange(self._core, REDIS_WORKER, request)

    async def fetch(self, digest: str) -> bytes:
        """Return a message that a worker uploaded over HTTP."""
        return await exchange.fetch_message(self._core, digest)

    async def keep(self, body: bytes, token: str) -> str:
        """Store a message for the holder of the token."""
        return await exchange.keep_message(self._core, body, token)

    async def elastic_disabled(self) -> frozenset[str]:
        """Return the workers that elastic scaling keeps on standby."""
        return frozenset(await self._core.read(worker_rows.elastic_disabled))

    async def workers(self) -> dict[str, bool]:
        """Return the known workers, and whether each is online."""
        return {row.id: row.status == "online" for row in await self._core.read(workers.all_rows)}


def keys_of(core: ServerContext) -> Keys:
    """Return a server's Redis key names."""
    return Keys(core.settings.topic, core.settings.redis_prefix)


def store_of(core: ServerContext, url: str = "") -> Store:
    """Return the identity that a server shares with its predecessors on the same database, and with no other server."""
    where = f"on {socket.gethostname()} with its data in {core.settings.data_dir.absolute()}"
    return Store(hashlib.sha256(core.secret + b":store").hexdigest()[:16], where, url)


async def refuse_other_store(core: ServerContext, url: str) -> None:
    """Refuse to start if servers of another database use the topic."""
    await fleet_identity.refuse_other_store(url, keys_of(core), store_of(core))


def hub_of(core: ServerContext, url: str, here: str | None) -> RedisHub:
    """Return the Redis transport of a server."""
    settings = core.settings
    # Stable across restarts, so that the server finds its pending entries; different for another server.
    about = f"{socket.gethostname()}:{settings.data_dir.absolute()}"
    name = hashlib.sha256(core.secret + about.encode()).hexdigest()[:12]
    return RedisHub(
        url, keys_of(core), RedisWorkerService(core), name=name, store=store_of(core, address_of(core, url, here))
    )


def address_of(core: ServerContext, url: str, here: str | None) -> str:
    """Return the HTTP address of the server for workers; Redis publishes it to workers without a configured one."""
    if core.settings.public_base_url is not None:
        return core.settings.public_base_url
    if here is None or core.settings.host not in {"0.0.0.0", "::"}:
        return here or ""
    outward = address_towards(url)
    return here if outward is None else here.replace("[::1]", outward).replace("127.0.0.1", outward)
