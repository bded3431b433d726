"""Request bodies of the agent: limited in size while they are read, and strict JSON."""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

import orjson
from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

from tunefleet.errors import AuthError, ForbiddenError
from tunefleet.trainer_control.control.control_server import peer_uid

# A config has some kilobytes; a larger body is rejected before it is in memory.
MAX_BYTES: Final = 4 << 20
_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class _Bounded(Request):
    """A request with a limited body."""

    async def body(self) -> bytes:
        """Return the body.

        Raises:
            HTTPException: 413 if it is over the limit.
        """
        if not hasattr(self, "_body"):
            parts, size = [], 0
            async for part in self.stream():
                size += len(part)
                if size > MAX_BYTES:
                    raise HTTPException(413, f"The body has more than {MAX_BYTES >> 20} MiB.")
                parts.append(part)
            self._body = b"".join(parts)
        return self._body

    async def json(self) -> Any:
        """Return the parsed body; raises `JSONDecodeError` if it is not JSON."""
        # orjson rejects `NaN` and `Infinity`, which are not JSON and would silently become None in a spec.
        return orjson.loads(await self.body())


class Route(APIRoute):
    """A route of the agent: the caller is authenticated before the body is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that authenticates the caller and limits the body."""
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            # In a thread: the check reads /proc/net/tcp to find the peer's user.
            await run_in_threadpool(check, request)
            return await handle(_Bounded(request.scope, request.receive))

        return bounded


def check(request: Request) -> None:
    """Check that a request is allowed.

    Raises:
        AuthError: If the key is missing or wrong, or the process belongs to another user.
        ForbiddenError: If it comes from a web page, or its Host header is not local.
    """
    secret: str | None = request.app.state.key
    given = _given(request)
    if secret is not None:
        if given is None or not hmac.compare_digest(given.encode(), secret.encode()):
            raise AuthError("Missing or wrong key.", hint="Send TUNEFLEET_AGENT_KEY as 'Authorization: Bearer KEY'.")
        return
    # Without a key: a foreign Host header means DNS rebinding, where a web page resolves its own name to loopback.
    host = re.sub(r":\d+$", "", request.headers.get("host", "")).lower()
    if host not in _LOCAL_HOSTS:
        raise ForbiddenError(
            f"The Host {host!r} is not local.", hint="Set TUNEFLEET_AGENT_KEY to reach the agent from other hosts."
        )
    origin = request.headers.get("origin")
    page = origin is not None or request.headers.get("sec-fetch-site", "none") != "none"
    if page and origin not in request.app.state.origins:
        raise ForbiddenError(
            "Requests from web pages are not allowed.",
            hint="Add the page's origin to TUNEFLEET_AGENT_CORS_ORIGINS of the agent.",
        )
    if not _is_own_process(request):
        raise AuthError(
            "Without a key, only processes of the agent's own user on this machine are allowed.",
            hint="Set TUNEFLEET_AGENT_KEY and send it as 'Authorization: Bearer KEY'.",
        )


def _given(request: Request) -> str | None:
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return request.headers.get("x-api-key") or None


def _is_own_process(request: Request) -> bool:
    peer, ours = request.scope.get("client"), request.scope.get("server")
    if peer is None or ours is None or not peer[0].startswith("127."):
        return False
    return peer_uid((peer[0], int(peer[1])), (ours[0], int(ours[1]))) == os.geteuid()
