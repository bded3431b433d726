"""Middleware for body limits, security headers and the access log.

Raw ASGI, because Starlette's `BaseHTTPMiddleware` costs a task and a queue per request. Knows no route's meaning, only
which paths are streams.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from typing import Final, NoReturn

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tunefleet.api import problem_details

access_log = logging.getLogger("tunefleet.server.access")

# Bodies that no handler holds in memory; gradients are read and dropped, to respond with the route to use instead.
_UPLOADS: Final = re.compile(
    r"^(PUT /api/v1/(federations/[^/]+/)?blobs/[^/]+|PUT /api/v1/federations/[^/]+/updates"
    r"|POST /api/v1/results/[^/]+/files|POST /api/training/gradients"
    r"|POST /api/training/adapters/[^/]+/[^/]+/(?!aggregate$)[^/]+)$"
)
_ROUTINE_PATH: Final = re.compile(
    r"^/api/v1/(healthz|link/exchange|(federations/[^/]+/)?blobs/.+|tasks/[^/]+/(journal|log|metrics|chat/turns.*|serve/.*))$"
)
_STILL_S: Final = 120.0
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HSTS: Final = "max-age=31536000"
_CLIENT_ERROR: Final = 400

# Set unless a handler sets its own.
SECURITY_HEADERS: Final[dict[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
_TOO_SLOW: Final = problem_details.problem(
    "body_stalled",
    f"No data of the request body was received for {_STILL_S:g} s.",
    hint="Send the request again; an upload resumes where it was interrupted.",
    headers={"Connection": "close"},
)


class BodyRefused(Exception):
    """Unwinds a handler whose request exceeds a limit; never leaves this module."""

    def __init__(self, answer: ASGIApp) -> None:
        super().__init__()
        self.answer = answer


class BodyLimit:
    """Refuse a request body over its limit with 413, before or while it is read, and one that stalls with 408.

    A body with a `Content-Length` is refused before the app sees it; a chunked one is counted as it arrives.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, max_upload_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] in _SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        upload = _UPLOADS.match(f"{scope['method']} {scope['path']}") is not None
        limit = self._max_upload_bytes if upload else self._max_body_bytes
        refusal = problem_details.problem(
            "too_large",
            f"The body of {scope['method']} {scope['path']} exceeds {limit} bytes.",
            hint=None if upload else "Upload the data as files, or raise TUNEFLEET_MAX_BODY_BYTES on the server.",
        )
        refusal = problem_details.for_path(scope["path"], refusal)
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            await refusal(scope, receive, send)
            return
        watched = _WatchedBody(receive, send, limit, refusal)
        try:
            await self._app(scope, watched.receive, watched.send)
        except BodyRefused as refused:
            watched.refusal = refused.answer
        if watched.refusal is not None and not watched.answered:
            await watched.refusal(scope, receive, send)


class _WatchedBody:
    """Enforces size and idle limits; after a violation the app's own response is suppressed."""

    def __init__(self, receive: Receive, send: Send, limit: int, too_large: ASGIApp) -> None:
        self._receive = receive
        self._send = send
        self._left = limit
        self._too_large = too_large
        self._more = True
        self.refusal: ASGIApp | None = None
        self.answered = False

    async def receive(self) -> Message:
        # After the body, `receive` waits for the disconnect: that is not a stalled body.
        try:
            # A client that sends half a body and stops would hold memory and the write lock of an upload indefinitely.
            async with asyncio.timeout(_STILL_S if self._more else None):
                message = await self._receive()
        except TimeoutError:
            self._refuse(_TOO_SLOW)
        self._more = message["type"] == "http.request" and message.get("more_body", False)
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                self._refuse(self._too_large)
        return message

    def _refuse(self, answer: ASGIApp) -> NoReturn:
        self.refusal = answer
        raise BodyRefused(answer)

    async def send(self, message: Message) -> None:
        if self.refusal is not None and not self.answered:
            # The framework turned BodyRefused into a response of its own; the caller sends the refusal instead.
            return
        self.answered = True
        await self._send(message)


class SecurityHeaders:
    """Add the headers that restrict what a browser does with a response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # HSTS for `localhost` would apply to every port of the user's machine.
        secure = scope["scheme"] == "https" and _host(scope) != "localhost"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if secure:
                    headers.setdefault("Strict-Transport-Security", _HSTS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _host(scope: Scope) -> str:
    return Headers(scope=scope).get("host", "").partition(":")[0].lower()


class AccessLog:
    """Log one line per request, without its query string, which may contain a login code.

    Routine requests of machines (polls, journals, health checks) and reads are logged at DEBUG.
    """

    def __init__(self, app: ASGIApp, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = self._clock()
        status = 0

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            level = _level(scope["method"], scope["path"], status)
            if access_log.isEnabledFor(level):
                spent_ms = (self._clock() - started) * 1000
                # A raw path may hold line breaks once decoded; %r keeps one request on one line.
                access_log.log(level, "%s %r %s %.1f ms", scope["method"], scope["path"], status or "cut", spent_ms)


def _level(method: str, path: str, status: int) -> int:
    if status >= _CLIENT_ERROR:
        return logging.INFO
    return logging.DEBUG if method in _SAFE_METHODS or _ROUTINE_PATH.match(path) else logging.INFO
