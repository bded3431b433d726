"""A transport for other people's clients of HTTP, such as a database's; who may be reached is `reach`'s business."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from tunefleet.client.reach import Reach
from tunefleet.errors import ForbiddenError, InputError, TunefleetError, UnreachableError

__all__ = ["Guarded", "failure"]


class Guarded(httpx.BaseTransport):
    """Looks each request's host up, and connects to the very address that was checked.

    Args:
        allowed: Hosts and networks in private ranges that may be reached.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._reach = Reach(allowed)
        self._inner = httpx.HTTPTransport(retries=0)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request.

        Raises:
            ForbiddenError: If the address may not be reached.
            UnreachableError: If the host has no address.
            httpx.TransportError: If it does not answer.
        """
        host = request.url.host
        request.extensions = {**request.extensions, "sni_hostname": host}
        request.url = request.url.copy_with(host=str(self._reach.check_url(str(request.url))))
        return self._inner.handle_request(request)

    def close(self) -> None:
        """Let go of the connections."""
        self._inner.close()


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
