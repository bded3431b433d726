"""An SSRF-safe transport for third-party HTTP clients, such as a database's; `ssrf_guard` decides what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import httpx

from tunefleet.client.external.limit import Limit, cut
from tunefleet.client.external.ssrf_guard import SsrfGuard
from tunefleet.errors import ForbiddenError, InputError, TunefleetError, UnreachableError

__all__ = ["Guarded", "failure"]

# Timeout of a request that sets none itself.
_PATIENCE_S: Final = 70.0


class Guarded(httpx.BaseTransport):
    """Resolves each request's host, and connects to exactly the address that was checked.

    Args:
        allowed: Hosts and networks in private ranges that may be reached.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._reach = SsrfGuard(allowed)
        self._inner = httpx.HTTPTransport(retries=0)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the complete response.

        Raises:
            ForbiddenError: If the address is not allowed.
            UnreachableError: If the host cannot be resolved, or its response is not complete in time.
            httpx.TransportError: If it does not respond.
        """
        host, patience = request.url.host, request.extensions.get("timeout") or {}
        seconds = sum(patience.get(each) or 0.0 for each in ("connect", "read")) or _PATIENCE_S
        limit = Limit(seconds)
        request.url = request.url.copy_with(host=str(self._reach.check_url(str(request.url))))
        request.stream = _Sent(request.stream, limit, seconds)
        try:
            with limit.watched() as trace:
                request.extensions = {**request.extensions, "sni_hostname": host, "trace": trace}
                answer = self._inner.handle_request(request)
                try:
                    body = b"".join(answer.iter_raw())
                finally:
                    answer.close()
        except httpx.HTTPError:
            limit.check(host)
            raise
        limit.check(host)  # a connection that we closed may look like a complete response
        return httpx.Response(answer.status_code, headers=answer.headers, content=body, extensions=answer.extensions)

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


class _Sent(httpx.SyncByteStream):
    """A request body in pieces, each with a time limit."""

    def __init__(self, stream: object, limit: Limit, seconds: float) -> None:
        assert isinstance(stream, Iterable), "the client is no asynchronous one"
        self._whole, self._limit, self._seconds = stream, limit, seconds

    def __iter__(self) -> Iterator[bytes]:
        return self._limit.renewed_by(cut(self._whole), self._seconds)


def failure(error: BaseException, host: str) -> TunefleetError | None:
    """Translate a failed request into a task's error; `None` if it is not a network failure.

    Args:
        error: The error, or its cause.
        host: Host of the request.
    """
    if isinstance(error, ForbiddenError):
        return InputError(error.message, hint=error.hint)
    if isinstance(error, UnreachableError):
        return error
    if isinstance(error, httpx.HTTPError):
        reason = str(error) or type(error).__name__
        return UnreachableError(f"Cannot reach {host}: {reason}.", detail=repr(error))
    return None
