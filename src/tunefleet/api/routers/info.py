"""What anybody may ask a server, and its housekeeping."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import orjson
from fastapi import Request, Response

import tunefleet
from tunefleet import spec
from tunefleet.api.auth import Admin, CoreDep, Reader, identify_if_known
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.ha import servers
from tunefleet.orchestrator.storage import prune, usage_report
from tunefleet.schemas.api import PruneReply, PruneRequest, ServerInfo
from tunefleet.schemas.server_info import HealthView, PeersView, ServerView, StorageView
from tunefleet.schemas.ui import ExampleView
from tunefleet.spec.documents import gallery

router = api_router(tags=["server"])
_PUBLIC: dict[str, Any] = {"security": []}


@router.get("/healthz", openapi_extra=_PUBLIC)
async def healthz(core: CoreDep) -> HealthView:
    """Say that the server answers, and whether it leads those that share its database."""
    return usage_report.health(core)


@router.get("/info", openapi_extra=_PUBLIC)
async def info(request: Request) -> ServerInfo:
    """Say which version this is and, with a key, whose key it is."""
    who = await identify_if_known(request)
    if isinstance(who, Actor):
        return usage_report.info(who)
    return ServerInfo(version=tunefleet.__version__, authenticated=who is not None)


@router.get("/schema", openapi_extra=_PUBLIC, response_model=dict[str, Any])
async def schema() -> Response:
    """Return the JSON Schema of workflow documents, for editors."""
    # Public, and built in about a second: once, in a thread.
    return Response(await asyncio.to_thread(_schema), media_type="application/json")


@functools.cache
def _schema() -> bytes:
    return orjson.dumps(spec.json_schema())


@router.get("/examples")
async def list_examples(_: Reader) -> list[ExampleView]:
    """List whole documents to begin with; those that are asked for most come first."""
    # Each is parsed, at the first request.
    found = await asyncio.to_thread(gallery.examples)
    return [ExampleView.model_validate(each._asdict()) for each in found]


@router.post("/prune")
async def prune_old(core: CoreDep, who: Admin, request: PruneRequest) -> PruneReply:
    """Remove workflows that ended long ago, and files that nothing refers to."""
    return await prune.run(core, request.older_than_s, request.dry_run, project=who.project)


@router.get("/server")
async def show_server(core: CoreDep, who: Reader) -> ServerView:
    """Show what the server is made of: versions, database, where files are kept."""
    return await usage_report.server(core, who)


@router.get("/storage")
async def show_storage(core: CoreDep, who: Reader) -> StorageView:
    """Show how much room the server's data takes, by kind; counted anew every few seconds at most."""
    return await usage_report.storage(core, who)


@router.get("/servers")
async def list_servers(core: CoreDep, who: Reader) -> PeersView:
    """Show the servers that share the database, and which of them leads."""
    return await servers.show(core, who)
