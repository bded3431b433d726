"""The audit log's middleware: a row is stored before the response to a mutating request is sent.

Raw ASGI, like the other middleware. Routine traffic of machines is not logged (worker exchanges, agent polls, file
parts, journals, logs), nor are unauthenticated requests other than login attempts.
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
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.leadership import fenced

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
        "POST /serve/{name}/v1/chat/completions",
        "POST /serve/{name}/v1/completions",
        "POST /serve/{name}/v1/embeddings",
    }
)
"""Method and route of requests that are not logged: they change nothing that an auditor would look for."""
# Routes without a known actor: logins, and machines that join. Failed attempts are logged, too.
_NAMELESS: Final = frozenset({"POST /api/v1/session", "POST /login", "POST /api/v1/join"})
_MAX_TARGET: Final = 500
_MAX_PATH: Final = 200
_FAILED: Final = 500


class Audit:
    """Write the audit log."""

    def __init__(self, app: ASGIApp, core: ServerContext) -> None:
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
                    # Done but not logged: 503 makes the client repeat the request, which is idempotent.
                    refused = True
                    unavailable = UnreachableError(error.message, hint=error.hint, detail=error.detail)
                    await problem_details.from_error(unavailable)(scope, receive, send)
            if not refused:
                await send(message)

        try:
            await self._app(scope, receive, send_after_the_row)
        except Exception:
            # An outer handler sends the 500; the row is written here first.
            if not answered:
                await self._store(scope, _FAILED, request_id)
            raise

    async def _store(self, scope: Scope, status: int, request_id: str) -> None:
        state: dict[str, Any] = scope.setdefault("state", {})
        name, who = f"{scope['method']} {route_of(scope)}", state.get(NOTED)
        if name not in ROUTINE and (who is not None or name in _NAMELESS):
            # Unfenced: any server may write a row, also one that has just lost the lead.
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
    """Return the path template of the route that serves a request; its truncated path if none does."""
    route = scope.get("route")
    return route.path if isinstance(route, Route) else str(scope["path"])[:_MAX_PATH]
