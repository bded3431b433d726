"""The HTTP transport, worker's end: one long-polled exchange, and the same for many workers in one event loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import httpx
from pydantic import ValidationError

from tunefleet.client import trust
from tunefleet.client.connection import normalise
from tunefleet.client.problems import exception_of
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
from tunefleet.transport.base import AsyncWorkerLink, WorkerLink

_JOURNALS_AT_ONCE: Final = 64
M = TypeVar("M", bound=Message)
# Allowance on top of a long poll: a busy server's commit, a slow network.
SLACK_S: Final = 15.0
# Transient statuses of a server or of a proxy in front of it.
_BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpLink(WorkerLink):
    """Uses `/api/v1/link` of a server."""

    def __init__(self, url: str, key: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self._url = normalise(url)
        self._client = httpx.Client(
            base_url=f"{self._url}/api/v1/link",
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            timeout=httpx.Timeout(SLACK_S),
            limits=httpx.Limits(max_connections=4),
            **trust.options(self._url),
            transport=transport,
        )

    def register(self, request: RegisterRequest) -> RegisterReply:
        """Register the worker and what it holds; starts a session."""
        return self._call("/register", request, RegisterReply, wait_s=0.0)

    def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Report news and wait up to `request.wait_s` for the server's messages."""
        return self._call("/exchange", request, ExchangeReply, wait_s=request.wait_s)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _call(self, path: str, body: Message, reply: type[M], *, wait_s: float) -> M:
        timeout = httpx.Timeout(SLACK_S, read=wait_s + SLACK_S)
        try:
            response = self._client.post(path, content=body.model_dump_json(exclude_defaults=True), timeout=timeout)
        except (httpx.HTTPError, RuntimeError) as error:  # httpx raises RuntimeError once the client is closed
            silent = UnreachableError(f"The server at {self._url} does not respond.", detail=repr(error))
            raise trust.explained(self._url, error) or silent from error
        return reply_in(response, reply, self._url)


def reply_in(response: httpx.Response, reply: type[M], url: str) -> M:
    """Parse a response."""
    if response.status_code in _BUSY:
        raise UnreachableError(f"The server at {url} is not ready ({response.status_code}).")
    if not response.is_success:
        raise exception_of(response, response.content)
    try:
        return reply.model_validate_json(response.content)
    except ValidationError as error:
        raise UnreachableError(
            f"{url} is not a Tunefleet server of a compatible version.", detail=str(error)
        ) from error


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
