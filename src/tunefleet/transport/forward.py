"""Forwards a request unchanged to another server, and streams its response back: for requests to the leader.

Knows HTTP between two servers; the caller decides who leads, and what is forwarded.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Final

import httpx

from tunefleet.client import trust
from tunefleet.errors import UnreachableError

Header = tuple[bytes, bytes]

# Proves that a request comes from a server of the same database, and names the leader's epoch.
PEER: Final = b"x-tunefleet-peer"
FORWARDED_FOR: Final = b"x-forwarded-for"
_CONNECT_S: Final = 2.0
_IDLE_S: Final = 30.0
_HOP: Final = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"expect",
    }
)  # fmt: skip
"""Hop-by-hop headers, which belong to one connection."""


def proof(secret: bytes, epoch: int) -> bytes:
    """Return the header value that authenticates a request to the leader of an epoch."""
    signed = hmac.new(secret, b"peer:%d" % epoch, hashlib.sha256).hexdigest()
    return f"{epoch}.{signed}".encode()


def epoch_of(secret: bytes, given: bytes) -> int | None:
    """Return the epoch of a proof; `None` if no server of this database created it."""
    number = given.partition(b".")[0]
    if not number.isdigit() or len(number) > 18:
        return None
    # Constant-time comparison: the duration must not reveal how much of a guess is right.
    return int(number) if hmac.compare_digest(given, proof(secret, int(number))) else None


class NotSentError(UnreachableError):
    """Nothing of the request was sent: it can be retried with any server."""


class ForwardedResponse:
    """A streamed response of another server."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        left_out = _HOP | {b"date"}
        self.headers: list[Header] = [(n.lower(), v) for n, v in response.headers.raw if n.lower() not in left_out]

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, unchanged.

        Raises:
            UnreachableError: If the connection breaks.
        """
        try:
            async for piece in self._response.aiter_raw():
                yield piece
        except httpx.HTTPError as error:
            raise UnreachableError("The leader's response was interrupted.", detail=repr(error)) from error

    async def __aenter__(self) -> ForwardedResponse:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._response.aclose()


class Peers:
    """Connections to other servers, kept open between requests; certificates are verified."""

    def __init__(self) -> None:
        self._clients: dict[str, httpx.AsyncClient] = {}

    def _client(self, scheme: str) -> httpx.AsyncClient:
        if scheme not in self._clients:
            self._clients[scheme] = httpx.AsyncClient(
                # No read timeout: the response may be a long poll, and the caller stops when another server leads.
                timeout=httpx.Timeout(None, connect=_CONNECT_S),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=_IDLE_S),
                verify=trust.context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                trust_env=False,
            )
        return self._clients[scheme]

    async def send(
        self, method: str, url: str, target: bytes, headers: Iterable[Header], body: AsyncIterator[bytes] | None
    ) -> ForwardedResponse:
        """Forward a request.

        Args:
            headers: The original headers, including `Host`, which a page's origin is compared with. Hop-by-hop headers
                are dropped.

        Raises:
            NotSentError: If the other server is unreachable.
            UnreachableError: If the connection broke before the response: the request may or may not have taken effect.
        """
        mine = [(name, value) for name, value in headers if name not in _HOP]
        there = httpx.URL(url).copy_with(raw_path=target)
        request = httpx.Request(method, there, headers=mine, content=body)
        try:
            return ForwardedResponse(await self._client(there.scheme).send(request, stream=True))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NotSentError(f"Cannot reach the leader at {url}.", detail=repr(error)) from error
        except (httpx.HTTPError, RuntimeError) as error:
            raise UnreachableError("The connection to the leader was interrupted.", detail=repr(error)) from error

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.aclose()
