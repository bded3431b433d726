"""Public information about a server, and its maintenance."""

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
from tunefleet.orchestrator.ha import leader_election
from tunefleet.orchestrator.storage import usage_report
from tunefleet.orchestrator.workflows import prune
from tunefleet.schemas.api import PruneReply, PruneRequest, ServerInfo
from tunefleet.schemas.server_info import HealthView, PeersView, ServerView, StorageView
from tunefleet.schemas.ui import ExampleView
from tunefleet.spec.documents import gallery

router = api_router(tags=["server"])
_PUBLIC: dict[str, Any] = {"security": []}


@router.get("/healthz", openapi_extra=_PUBLIC)
async def healthz(core: CoreDep) -> HealthView:
    """Check that the server is running, and whether it leads the servers of its database."""
    return usage_report.health(core)


@router.get("/info", openapi_extra=_PUBLIC)
async def info(request: Request) -> ServerInfo:
    """Retrieve the server's version and, with a key, the owner of that key."""
    who = await identify_if_known(request)
    if isinstance(who, Actor):
        return usage_report.info(who)
    return ServerInfo(version=tunefleet.__version__, authenticated=who is not None)


@router.get("/schema", openapi_extra=_PUBLIC, response_model=dict[str, Any])
async def schema() -> Response:
    """Retrieve the JSON Schema of workflow files, for editors."""
    # A public route: the schema takes about a second to build, so it is built once, in a thread.
    return Response(await asyncio.to_thread(_schema), media_type="application/json")


@functools.cache
def _schema() -> bytes:
    return orjson.dumps(spec.json_schema())


@router.get("/examples")
async def list_examples(_: Reader) -> list[ExampleView]:
    """List complete example workflows. The most common ones come first."""
    # The first request parses every example.
    found = await asyncio.to_thread(gallery.examples)
    return [ExampleView.model_validate(each._asdict()) for each in found]


@router.post("/prune")
async def prune_old(core: CoreDep, who: Admin, request: PruneRequest) -> PruneReply:
    """Delete workflows that ended long ago, and files that nothing references."""
    return await prune.run(core, request.older_than_s, request.dry_run, project=who.project)


@router.get("/server")
async def show_server(core: CoreDep, who: Reader) -> ServerView:
    """Retrieve versions, database and file storage of the server."""
    return await usage_report.server(core, who)


@router.get("/storage")
async def show_storage(core: CoreDep, who: Reader) -> StorageView:
    """Retrieve the disk usage of the server's data, by kind. Recomputed at most every few seconds."""
    return await usage_report.storage(core, who)


@router.get("/servers")
async def list_servers(core: CoreDep, who: Reader) -> PeersView:
    """List the servers that share the database, and which of them leads."""
    return await leader_election.show_servers(core, who)
