"""The HTTP transport, worker's end: one long-polled exchange; works behind NAT with only the server's URL and a key."""

from __future__ import annotations

from typing import Final, TypeVar

import httpx
from pydantic import ValidationError

from tunefleet.client import trust
from tunefleet.client.connection import normalise
from tunefleet.client.problems import exception_of
from tunefleet.errors import UnreachableError
from tunefleet.schemas.base import Message
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, RegisterReply, RegisterRequest
from tunefleet.transport.base import WorkerLink

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
