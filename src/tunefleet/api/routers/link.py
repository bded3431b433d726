"""The exchange between workers and the server: registration, and the long-polled exchange."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from starlette.routing import Route

from tunefleet.api import request_bodies
from tunefleet.api.auth import CoreDep, WorkerKey, core_of, require_worker
from tunefleet.api.routers import api_router
from tunefleet.errors import InputError
from tunefleet.orchestrator.workers import exchange as worker_exchange
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, RegisterReply, RegisterRequest

router = api_router(prefix="/link", tags=["link"])


@router.post(
    "/register",
    response_model=RegisterReply,
    openapi_extra=request_bodies.documented(request_bodies.json_of(RegisterRequest)),
)
async def register(request: Request, core: CoreDep, who: WorkerKey) -> Response:
    """Register a worker process: its identity, its capabilities and the attempts that it holds."""
    return request_bodies.answer(
        await worker_exchange.register(core, who, await request_bodies.read(request, RegisterRequest))
    )


@router.post(
    "/exchange",
    response_model=ExchangeReply,
    openapi_extra=request_bodies.documented(request_bodies.json_of(ExchangeRequest)),
)
async def exchange(request: Request, core: CoreDep, who: WorkerKey) -> Response:
    """Report news, renew leases, and wait up to `wait_s` seconds for offers and commands."""
    return request_bodies.answer(
        await worker_exchange.exchange(core, who, await request_bodies.read(request, ExchangeRequest))
    )


def install(app: FastAPI) -> None:
    """Serve exchanges ahead of all other routes, without FastAPI's handling."""

    async def serve(request: Request) -> Response:
        request.scope["route"] = route
        if request.scope["query_string"]:
            raise InputError(f"{request.url.path} has no query parameters.")
        who = await require_worker(request)
        exchange_request = await request_bodies.read(request, ExchangeRequest)
        return request_bodies.answer(await worker_exchange.exchange(core_of(request), who, exchange_request))

    # FastAPI's work around a handler (dependencies, exit stacks) takes as long as the exchange itself, and memory while
    # it is held; an idle fleet of a thousand workers sends a hundred exchanges per second.
    route = Route(f"{router.prefix}/exchange", serve, methods=["POST"], include_in_schema=False)
    app.router.routes.append(route)
