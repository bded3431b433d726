"""The link between workers and the server: register, and the long-polled exchange."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tunefleet.server import bodies
from tunefleet.server.auth import CoreDep, WorkerKey
from tunefleet.services import link
from tunefleet.wire.link import ExchangeReply, ExchangeRequest, RegisterReply, RegisterRequest

router = APIRouter(prefix="/link", tags=["link"])


@router.post(
    "/register", response_model=RegisterReply, openapi_extra=bodies.documented(bodies.json_of(RegisterRequest))
)
async def register(request: Request, core: CoreDep, who: WorkerKey) -> Response:
    """A worker's process has started: say who it is and what it holds."""
    return bodies.answer(await link.register(core, who, await bodies.read(request, RegisterRequest)))


@router.post(
    "/exchange", response_model=ExchangeReply, openapi_extra=bodies.documented(bodies.json_of(ExchangeRequest))
)
async def exchange(request: Request, core: CoreDep, who: WorkerKey) -> Response:
    """Say what is new, renew what is held, and wait for offers and wishes; the connection is held up to `wait_s`."""
    return bodies.answer(await link.exchange(core, who, await bodies.read(request, ExchangeRequest)))
