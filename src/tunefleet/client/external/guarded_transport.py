"""A transport for other people's clients of HTTP, such as a database's; who may be reached is `reach`'s business."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import httpx

from tunefleet.client.external.limit import Limit, cut
from tunefleet.client.external.ssrf_guard import Reach
from tunefleet.errors import ForbiddenError, InputError, TunefleetError, UnreachableError

__all__ = ["Guarded", "failure"]

# For an answer to a request without limits of its own.
_PATIENCE_S: Final = 70.0


class Guarded(httpx.BaseTransport):
    """Looks each request's host up, and connects to the very address that was checked.

    Args:
        allowed: Hosts and networks in private ranges that may be reached.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._reach = Reach(allowed)
        self._inner = httpx.HTTPTransport(retries=0)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the whole answer.

        Raises:
            ForbiddenError: If the address may not be reached.
            UnreachableError: If the host has no address, or does not end its answer in the time that its silence has.
            httpx.TransportError: If it does not answer.
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
                    said = b"".join(answer.iter_raw())
                finally:
                    answer.close()
        except httpx.HTTPError:
            limit.check(host)
            raise
        limit.check(host)  # what this end has cut off may read like a whole answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=said, extensions=answer.extensions)

    def close(self) -> None:
        """Let go of the connections."""
        self._inner.close()


class _Sent(httpx.SyncByteStream):
    """What is sent, in pieces that must be taken in time."""

    def __init__(self, stream: object, limit: Limit, seconds: float) -> None:
        assert isinstance(stream, Iterable), "the client is no asynchronous one"
        self._whole, self._limit, self._seconds = stream, limit, seconds

    def __iter__(self) -> Iterator[bytes]:
        return self._limit.renewed_by(cut(self._whole), self._seconds)


def failure(error: BaseException, host: str) -> TunefleetError | None:
    """Return what a failed request means for a task; null if it is no failure of the network.

    Args:
        error: What was raised, or what it was raised for.
        host: Who was asked.
    """
    if isinstance(error, ForbiddenError):
        return InputError(error.message, hint=error.hint)
    if isinstance(error, UnreachableError):
        return error
    if isinstance(error, httpx.HTTPError):
        said = str(error) or type(error).__name__
        return UnreachableError(f"{host} cannot be reached: {said}.", detail=repr(error))
    return None
