"""Counts every request by its route's template, and assigns the request id of log lines and response."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tunefleet.observability import context
from tunefleet.orchestrator.counters import Meters

HEADER: Final = "X-Request-ID"
_SANE: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED: Final = "unmatched"
"""Label of a path that no route matches."""


class Measured:
    """Wraps the complete app."""

    def __init__(self, app: ASGIApp, meters: Meters | None, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._app = app
        self._meters = meters
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope)
        parent = context.read_traceparent(Headers(scope=scope).get("traceparent"))
        started, status = self._clock(), 0

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        try:
            trace_id = None if parent is None else parent.trace_id
            about = context.log_ids(request_id=request_id, trace_id=trace_id)
            with about, context.parent_span(parent), context.lazy_log_ids(lambda: _named(scope)):
                await self._app(scope, receive, send_noting_status)
        finally:
            if self._meters is not None:
                self._count(self._meters, scope, status, self._clock() - started)

    def _count(self, meters: Meters, scope: Scope, status: int, spent_s: float) -> None:
        # An arbitrary method as a label would let a client create time series without limit.
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = template(scope)
        meters.requests.labels(method, route, f"{status // 100}xx").inc()
        meters.request_s.labels(method, route).observe(spent_s)


def request_id_of(scope: Scope) -> str:
    """Return the id of a request: the client's or proxy's `X-Request-ID` if it is well-formed, else a new one."""
    state: dict[str, Any] = scope.setdefault("state", {})
    if "request_id" not in state:
        given = Headers(scope=scope).get(HEADER, "")
        state["request_id"] = given if _SANE.fullmatch(given) else secrets.token_hex(8)
    found: str = state["request_id"]
    return found


def _named(scope: Scope) -> dict[str, str]:
    """Return the ids in the path, once the router has parsed it."""
    found = scope.get("path_params") or {}
    return {name: str(found[name]) for name in context.NAMES if name in found}


def template(scope: Scope) -> str:
    """Return the path template of the route that served a request, never the path itself."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else UNMATCHED
