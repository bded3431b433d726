"""The server behind the Redis link: the verbs that the HTTP routes of the link call, for workers without a key."""

from __future__ import annotations

import hashlib
import socket

from tunefleet.links.redis_keys import Keys
from tunefleet.links.redis_server import RedisHub
from tunefleet.services import bulk, link
from tunefleet.services.core import Core
from tunefleet.services.identity import REDIS_WORKER
from tunefleet.store import controls, workers
from tunefleet.wire.link import ExchangeReply, ExchangeRequest, RegisterReply, RegisterRequest


class CoreDesk:
    """Answers workers that are known by what they registered with.

    Args:
        core: What the services work on.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def register(self, request: RegisterRequest) -> RegisterReply:
        """Take up a worker's process."""
        return await link.register(self._core, REDIS_WORKER, request)

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Take what a worker says; answer as soon as there is something to answer."""
        return await link.exchange(self._core, REDIS_WORKER, request)

    async def fetch(self, digest: str) -> bytes:
        """Return a message that a worker has put over HTTP."""
        return await bulk.fetch(self._core, digest)

    async def keep(self, body: bytes, token: str) -> str:
        """Store a message for who holds the token."""
        return await bulk.keep(self._core, body, token)

    async def elastic_disabled(self) -> frozenset[str]:
        """Return the workers that elastic scaling keeps out of the pool."""
        return frozenset(await self._core.read(controls.elastic_disabled))

    async def workers(self) -> dict[str, bool]:
        """Return the workers that are known, and whether each is there."""
        return {row.id: row.status == "online" for row in await self._core.read(workers.all_rows)}


def hub_of(core: Core, url: str) -> RedisHub:
    """Return the Redis link of a server.

    Args:
        core: What the services work on.
        url: Of the Redis.
    """
    settings = core.settings
    # The same after a restart, so that it finds what it had read; another for each replica on one database.
    about = f"{socket.gethostname()}:{settings.data_dir.absolute()}"
    name = hashlib.sha256(core.secret + about.encode()).hexdigest()[:12]
    return RedisHub(url, Keys(settings.topic, settings.redis_prefix), CoreDesk(core), name=name)
