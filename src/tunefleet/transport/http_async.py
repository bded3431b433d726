"""The HTTP transport for many workers in one event loop, worker's end, and their journals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import httpx

from tunefleet.client import trust
from tunefleet.client.connection import normalise
from tunefleet.errors import UnreachableError
from tunefleet.schemas.base import Message
from tunefleet.schemas.worker_link import (
    Cursor,
    ExchangeReply,
    ExchangeRequest,
    JournalBatch,
    RegisterReply,
    RegisterRequest,
)
from tunefleet.transport.base import AsyncWorkerLink
from tunefleet.transport.http import SLACK_S, reply_in

M = TypeVar("M", bound=Message)

_JOURNALS_AT_ONCE: Final = 64


@dataclass(slots=True)
class Traffic:
    """Transferred bytes of bodies, without HTTP headers."""

    up_bytes: int = 0
    down_bytes: int = 0


class _Caller:
    """Posts messages to one server, and counts the transferred bytes."""

    def __init__(self, url: str, traffic: Traffic, *, connections: int, transport: httpx.AsyncBaseTransport | None):
        self._url = normalise(url)
        self._traffic = traffic
        self._client = httpx.AsyncClient(
            base_url=f"{self._url}/api/v1",
            headers={"Content-Type": "application/json"},
            timeout=httpx.Timeout(SLACK_S),
            limits=httpx.Limits(max_connections=connections),
            **trust.options(self._url),
            transport=transport,
        )

    async def post(self, path: str, key: str, body: Message, reply: type[M], *, wait_s: float = 0.0) -> M:
        content = body.model_dump_json(exclude_defaults=True).encode()
        self._traffic.up_bytes += len(content)
        timeout = httpx.Timeout(SLACK_S, read=wait_s + SLACK_S)
        own = {"Authorization": f"Bearer {key}"}
        try:
            response = await self._client.post(path, content=content, headers=own, timeout=timeout)
        except (httpx.HTTPError, RuntimeError) as error:  # httpx raises RuntimeError once the client is closed
            silent = UnreachableError(f"The server at {self._url} does not respond.", detail=repr(error))
            raise trust.explained(self._url, error) or silent from error
        self._traffic.down_bytes += len(response.content)
        return reply_in(response, reply, self._url)

    async def close(self) -> None:
        await self._client.aclose()


class AsyncHttpLink(AsyncWorkerLink):
    """Uses `/api/v1/link` of a server, for one worker.

    Args:
        traffic: Counts the bytes; of this link alone if it is not given.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        traffic: Traffic | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._key = key
        # Separate connections per worker, as if each ran on its own machine.
        self._caller = _Caller(url, traffic or Traffic(), connections=4, transport=transport)

    async def register(self, request: RegisterRequest) -> RegisterReply:
        """Register the worker and what it holds; starts a session."""
        return await self._caller.post("/link/register", self._key, request, RegisterReply)

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Report news and wait up to `request.wait_s` for the server's messages."""
        return await self._caller.post("/link/exchange", self._key, request, ExchangeReply, wait_s=request.wait_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._caller.close()


class AsyncJournals:
    """Ships journals of many attempts, each with its own token."""

    def __init__(self, url: str, traffic: Traffic) -> None:
        self._caller = _Caller(url, traffic, connections=_JOURNALS_AT_ONCE, transport=None)

    async def ship(self, task_id: str, token: str, batch: JournalBatch) -> int:
        """Deliver records of one launch; returns the next sequence number that the server expects.

        Raises:
            OffsetConflict: If earlier records are missing.
            AuthError: If the token was revoked.
            UnreachableError: If the server does not respond.
        """
        return (await self._caller.post(f"/tasks/{task_id}/journal", token, batch, Cursor)).cursor

    async def close(self) -> None:
        """Close the connections."""
        await self._caller.close()
