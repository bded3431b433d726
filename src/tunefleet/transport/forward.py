"""Hand a request on to another server as it came, and its answer back: what only the leader can answer.

Knows HTTP between two servers; who leads, and what is handed on, is the caller's.
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

# Proves that a request comes from a server of the same database, and names the epoch whose leader it is for.
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
"""What belongs to one connection and not to the request."""


def proof(secret: bytes, epoch: int) -> bytes:
    """Return what a server sends along with a request for the leader of an epoch."""
    signed = hmac.new(secret, b"peer:%d" % epoch, hashlib.sha256).hexdigest()
    return f"{epoch}.{signed}".encode()


def epoch_of(secret: bytes, given: bytes) -> int | None:
    """Return the epoch that a proof was made for; null if no server of this database made it."""
    number = given.partition(b".")[0]
    if not number.isdigit() or len(number) > 18:
        return None
    return int(number) if hmac.compare_digest(given, proof(secret, int(number))) else None


class NotSentError(UnreachableError):
    """Nothing of the request has arrived: it may be sent again, to whomever."""


class Answer:
    """What the other server answers, while it does."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        left_out = _HOP | {b"date"}
        self.headers: list[Header] = [(n.lower(), v) for n, v in response.headers.raw if n.lower() not in left_out]

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, unchanged.

        Raises:
            UnreachableError: If it breaks off.
        """
        try:
            async for piece in self._response.aiter_raw():
                yield piece
        except httpx.HTTPError as error:
            raise UnreachableError("The answer of the leading server broke off.", detail=repr(error)) from error

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._response.aclose()


class Peers:
    """Connections to the other servers, kept open between requests; certificates are checked as any server's."""

    def __init__(self) -> None:
        self._clients: dict[str, httpx.AsyncClient] = {}

    def _client(self, scheme: str) -> httpx.AsyncClient:
        if scheme not in self._clients:
            self._clients[scheme] = httpx.AsyncClient(
                # An answer may take as long as it takes: who waits for it is told when another server leads.
                timeout=httpx.Timeout(None, connect=_CONNECT_S),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=_IDLE_S),
                verify=trust.context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                trust_env=False,
            )
        return self._clients[scheme]

    async def send(
        self, method: str, url: str, target: bytes, headers: Iterable[Header], body: AsyncIterator[bytes] | None
    ) -> Answer:
        """Send a request on.

        Args:
            headers: As they came, `Host` too: a page's origin is held against it. What belongs to the connection is
                left out.

        Raises:
            NotSentError: If the other server cannot be reached.
            UnreachableError: If it broke off before it answered: it may have done what was asked, or not.
        """
        mine = [(name, value) for name, value in headers if name not in _HOP]
        there = httpx.URL(url).copy_with(raw_path=target)
        request = httpx.Request(method, there, headers=mine, content=body)
        try:
            return Answer(await self._client(there.scheme).send(request, stream=True))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NotSentError(f"The leading server at {url} cannot be reached.", detail=repr(error)) from error
        except (httpx.HTTPError, RuntimeError) as error:
            raise UnreachableError("The leading server broke off.", detail=repr(error)) from error

    async def close(self) -> None:
        """Let go of the connections."""
        for client in self._clients.values():
            await client.aclose()
