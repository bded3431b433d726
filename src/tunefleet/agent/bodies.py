"""Bodies of requests to the agent: bounded before they are read, and JSON in the strict sense.

A config has some kilobytes. What is larger is refused before it is in memory; `NaN` and the like are not JSON, and
would quietly become nothing on their way into a spec.
"""

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

MAX_BYTES: Final = 4 << 20


class _Bounded(Request):
    """A request whose body is read up to a limit."""

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
        """Return what the body says; raises a `JSONDecodeError` if it is no JSON."""
        return orjson.loads(await self.body())


class Route(APIRoute):
    """A route of the agent: who asks is known before a byte of the body is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Make the handler, for requests of who may ask, with a bounded body."""
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            await run_in_threadpool(check, request)
            return await handle(_Bounded(request.scope, request.receive))

        return bounded


_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def check(request: Request) -> None:
    """Let a request pass.

    Raises:
        AuthError: If the key is missing or wrong, or the process is another user's.
        ForbiddenError: If it comes from a web page, or was sent to another host's name.
    """
    secret: str | None = request.app.state.key
    given = _given(request)
    if secret is not None:
        if given is None or not hmac.compare_digest(given.encode(), secret.encode()):
            raise AuthError("This agent takes its key only.", hint="Send AGENT_KEY as 'Authorization: Bearer KEY'.")
        return
    host = re.sub(r":\d+$", "", request.headers.get("host", "")).lower()
    if host not in _LOCAL_HOSTS:
        raise ForbiddenError(
            f"The Host {host!r} is not local.", hint="Set AGENT_KEY to reach the agent from elsewhere."
        )
    origin = request.headers.get("origin")
    page = origin is not None or request.headers.get("sec-fetch-site", "none") != "none"
    if page and origin not in request.app.state.origins:
        raise ForbiddenError(
            "A request from a web page is refused.",
            hint="CORS_ALLOW_ORIGINS of the agent names pages that may call it.",
        )
    if not _is_own_process(request):
        raise AuthError(
            "Only processes of the agent's own user on this machine are answered without a key.",
            hint="Set AGENT_KEY and send it as 'Authorization: Bearer KEY'.",
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
