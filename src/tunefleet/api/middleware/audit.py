"""The audit log's part of a request: before an answer to what could change something goes out, its row is stored.

Raw ASGI, as the rest of what every request passes. What machines do all day is left out: the exchanges of workers, the
polls of agents, pieces of files, journals and logs; and so is whoever was not recognized, but for attempts to log in.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tunefleet.api import problem_details
from tunefleet.api.auth import NOTED
from tunefleet.api.middleware.request_metrics import request_id_of
from tunefleet.db.access.audit import AuditRow
from tunefleet.errors import TunefleetError, UnreachableError
from tunefleet.orchestrator.access import audit_log
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.ha.leadership import fenced

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
ROUTINE: Final = frozenset(
    {
        "POST /api/v1/link/exchange",
        "POST /api/v1/blobs/missing",
        "PUT /api/v1/blobs/{digest}",
        "POST /api/v1/blobs/{digest}/direct",
        "POST /api/v1/blobs/{digest}/direct/{upload}/links",
        "POST /api/v1/blobs/{digest}/direct/{upload}/complete",
        "PUT /api/v1/federations/{federation_id}/blobs/{digest}",
        "POST /api/v1/workflows/validate",
        "POST /api/training/agent/heartbeat",
    }
)
"""Method and route of what is not in the log: it changes nothing that a person would ask about."""
# Where nobody is known yet: logins, and machines that join. All tries are in the log.
_NAMELESS: Final = frozenset({"POST /api/v1/session", "POST /login", "POST /api/v1/join"})
_MAX_TARGET: Final = 500
_MAX_PATH: Final = 200
_FAILED: Final = 500


class Audit:
    """Write the audit log."""

    def __init__(self, app: ASGIApp, core: Core) -> None:
        self._app = app
        self._core = core

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] in _SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        request_id, answered, refused = request_id_of(scope), False, False

        async def send_after_the_row(message: Message) -> None:
            nonlocal answered, refused
            if message["type"] == "http.response.start":
                answered = True
                try:
                    await self._store(scope, message["status"], request_id)
                except TunefleetError as error:
                    # Done, and not in the log: who asked is told to ask again, which changes nothing twice.
                    refused = True
                    told = UnreachableError(error.message, hint=error.hint, detail=error.detail)
                    await problem_details.from_error(told)(scope, receive, send)
            if not refused:
                await send(message)

        try:
            await self._app(scope, receive, send_after_the_row)
        except Exception:
            # Answered outside of this, once it has been logged.
            if not answered:
                await self._store(scope, _FAILED, request_id)
            raise

    async def _store(self, scope: Scope, status: int, request_id: str) -> None:
        state: dict[str, Any] = scope.setdefault("state", {})
        name, who = f"{scope['method']} {route_of(scope)}", state.get(NOTED)
        if name not in ROUTINE and (who is not None or name in _NAMELESS):
            # Any server may write it, also one that has just ceased to lead.
            with fenced(None):
                await audit_log.write(self._core, who, self._row(scope, status, request_id))

    def _row(self, scope: Scope, status: int, request_id: str) -> AuditRow:
        client = scope.get("client")
        target = " ".join(f"{name}={value}" for name, value in scope.get("path_params", {}).items())
        return AuditRow(
            0, self._core.clock.wall(), None, None, None, None, client[0] if client else "", scope["method"],
            route_of(scope), target[:_MAX_TARGET] or None, status, request_id,
        )  # fmt: skip


def route_of(scope: Scope) -> str:
    """Return the template of the route that serves a request; its path, cut short, if none does."""
    route = scope.get("route")
    return route.path if isinstance(route, Route) else str(scope["path"])[:_MAX_PATH]
