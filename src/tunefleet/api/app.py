"""The application: middleware, routers, startup and shutdown. Takes an open `Core`; opens nothing itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

import tunefleet
from tunefleet.api import auth, openapi, problem_details, static_ui
from tunefleet.api.background import Lifetime
from tunefleet.api.middleware.audit import Audit
from tunefleet.api.middleware.request_limits import AccessLog, BodyLimit, SecurityHeaders
from tunefleet.api.middleware.request_metrics import Measured
from tunefleet.api.routers import (
    artifacts,
    blobs,
    campaigns,
    chat,
    endpoints,
    events,
    federations,
    guide,
    info,
    install,
    invitations,
    keys,
    link,
    listing,
    models,
    notifications,
    pages,
    projects,
    reports,
    results,
    sweeps,
    task_control,
    tasks,
    workers,
    workflows,
)
from tunefleet.api.routers.training_protocol import federated, training, training_agents, training_jobs
from tunefleet.orchestrator.access import api_keys as keys_service
from tunefleet.orchestrator.context import ServerContext

_DESCRIPTION: Final = (
    "Self-hosted control plane for fine-tuning language models. All routes except `healthz`, `info` and `schema` "
    "require an API key; errors are `application/problem+json`."
)
_CORS_HEADERS: Final = [
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "Range",
    "Upload-Length",
    "Upload-Offset",
    "X-API-Key",
]


def create_app(core: ServerContext) -> FastAPI:
    """Create the application of a server."""
    lifetime = Lifetime(core)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await keys_service.ensure_first(core)
        lifetime.start()
        try:
            yield
        finally:
            await lifetime.close()

    app = FastAPI(
        title="Tunefleet",
        version=tunefleet.__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        # `pages` serves the documentation itself: FastAPI's own pages load scripts from a CDN and ask for no key.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.core = core
    app.state.lifetime = lifetime
    link.install(app)
    # Starlette matches routes in this order: the most frequent ones come first.
    work = (workflows, listing, tasks, task_control, chat, endpoints, reports, events)
    files = (artifacts, blobs, results)
    registry = (sweeps, models, notifications, keys, projects, invitations, info)
    compatible = (training, training_jobs, training_agents, federated, guide)
    for module in (
        link,
        federations,
        *work,
        *files,
        workers,
        campaigns,
        *registry,
        *compatible,
        install,
        pages,
        static_ui,
    ):
        # Not `include_router`: the scope's route would lack the prefix, and audit log and metrics record its path.
        app.router.routes.extend(module.router.routes)
    app.mount(pages.ASSETS_PATH, pages.assets())
    problem_details.install(app, auth.require_known)
    openapi.install(app)
    _add_middleware(app, core)
    return app


def _add_middleware(app: FastAPI, core: ServerContext) -> None:
    """Add the middleware; the one added last handles a request first."""
    settings = core.settings
    app.add_middleware(Audit, core=core)
    # A database that only one server uses needs no leader proxy.
    if core.db.shared:
        from tunefleet.api.middleware.leader_proxy import Forward  # noqa: PLC0415 -- most servers are alone

        app.add_middleware(Forward, core=core)
    app.add_middleware(BodyLimit, max_body_bytes=settings.max_body_bytes, max_upload_bytes=settings.max_upload_bytes)
    if settings.cors_origins:
        # Without credentials: a page on another origin uses an API key, never a browser's session.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=_CORS_HEADERS,
            expose_headers=["Content-Range", "ETag"],
        )
    app.add_middleware(SecurityHeaders)
    app.add_middleware(AccessLog)
    app.add_middleware(Measured, meters=core.meters)
