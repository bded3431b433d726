"""Endpoints: OpenAI's API for clients, and the relay for the workers that answer."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tunefleet.api import request_bodies
from tunefleet.api.auth import CoreDep, EndpointCaller, Member, OwnAttempt, Reader
from tunefleet.api.query_params import Cursor, Limit, page
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.serving import endpoint_views, relay
from tunefleet.orchestrator.serving.calls import Call, Endpoint
from tunefleet.orchestrator.workflows import endpoint_restart
from tunefleet.schemas.api import Page
from tunefleet.schemas.chat import ChatModel, ChatModels
from tunefleet.schemas.endpoints import EndpointView, FramesReceipt, RelayedRequests, RelayPoll, ResponseFrames

router = APIRouter()
_openai = APIRouter(prefix="/serve/{name}/v1", tags=["endpoints"])
_api = api_router(tags=["endpoints"])

# nginx's status for a client that disconnected: only the access log sees it.
_CLIENT_CLOSED: Final = 499
_ANY: Final[dict[str, Any]] = {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}
_EITHER: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {**_ANY, "text/event-stream": {"schema": {"type": "string"}}}},
}
"""The response is a stream or one object, depending on `stream`."""
_BODY: Final[dict[str, Any]] = {"requestBody": {"required": True, "content": _ANY}}

EndpointName = Annotated[str, Path(max_length=128)]


@_openai.get("/models")
async def list_endpoint_models(core: CoreDep, who: EndpointCaller, name: EndpointName) -> ChatModels:
    """List the models of an endpoint in the format of OpenAI's API."""
    found = await relay.models(core, await endpoint_restart.find(core, who, name))
    return ChatModels(data=tuple(ChatModel(id=each, created=int(time.time())) for each in found))


@_openai.post("/chat/completions", responses=_EITHER, openapi_extra=_BODY)
async def create_chat_completion(request: Request, core: CoreDep, who: EndpointCaller, name: EndpointName) -> Response:
    """Create a chat completion in the format of OpenAI's API. Its base URL is `/serve/{name}/v1`."""
    return await _relayed(request, core, who, name, "chat/completions")


@_openai.post("/completions", responses=_EITHER, openapi_extra=_BODY)
async def create_completion(request: Request, core: CoreDep, who: EndpointCaller, name: EndpointName) -> Response:
    """Create a completion of a text in the format of OpenAI's API."""
    return await _relayed(request, core, who, name, "completions")


@_openai.post("/embeddings", responses={200: {"content": _ANY}}, openapi_extra=_BODY)
async def create_embeddings(request: Request, core: CoreDep, who: EndpointCaller, name: EndpointName) -> Response:
    """Create embeddings in the format of OpenAI's API."""
    return await _relayed(request, core, who, name, "embeddings")


@_api.get("/endpoints")
async def list_endpoints(core: CoreDep, who: Reader, limit: Limit = 100, cursor: Cursor = None) -> Page[EndpointView]:
    """List the endpoints of the project that have a task."""
    return page(Page[EndpointView], await endpoint_views.list_(core, who), limit, cursor)


@_api.get("/endpoints/{name}")
async def get_endpoint(core: CoreDep, who: Reader, name: EndpointName) -> EndpointView:
    """Retrieve an endpoint: its state, its replicas and its usage."""
    return await endpoint_views.get(core, who, name)


@_api.delete("/endpoints/{name}", status_code=204)
async def stop_endpoint(core: CoreDep, who: Member, name: EndpointName) -> None:
    """Stop an endpoint: its tasks are cancelled."""
    await endpoint_views.stop(core, who, name)


@_api.post(
    "/tasks/{task_id}/serve/requests",
    response_model=RelayedRequests,
    openapi_extra=request_bodies.documented(request_bodies.json_of(RelayPoll)),
)
async def fetch_requests(request: Request, core: CoreDep, attempt: OwnAttempt) -> Response:
    """Return the requests for the worker of an endpoint to answer. Waits up to `wait_s` seconds for one."""
    poll = await request_bodies.read(request, RelayPoll)
    found = await _while_connected(request, relay.poll(core, attempt, poll))
    return Response(status_code=_CLIENT_CLOSED) if found is None else request_bodies.answer(found)


@_api.post(
    "/tasks/{task_id}/serve/frames",
    response_model=FramesReceipt,
    openapi_extra=request_bodies.documented(request_bodies.json_of(ResponseFrames)),
)
async def take_frames(request: Request, core: CoreDep, attempt: OwnAttempt) -> Response:
    """Receive parts of responses from the worker of an endpoint."""
    frames = await request_bodies.read(request, ResponseFrames)
    return request_bodies.answer(await relay.receive(core, attempt, frames))


router.routes.extend((*_openai.routes, *_api.routes))


async def _relayed(request: Request, core: ServerContext, who: Actor, name: str, path: str) -> Response:
    endpoint = await endpoint_restart.find(core, who, name)
    call = relay.begin(core, endpoint, who.key_id, path, await request.body())
    try:
        found = await _while_connected(request, relay.head(core, endpoint, call))
    except BaseException:
        relay.leave(core, endpoint, call)
        raise
    if found is None:
        relay.leave(core, endpoint, call)
        return Response(status_code=_CLIENT_CLOSED)
    return _RelayedResponse(core, endpoint, call)


class _RelayedResponse(StreamingResponse):
    """A response that ends the request at the worker when the client disconnects, also between two parts."""

    def __init__(self, core: ServerContext, endpoint: Endpoint, call: Call) -> None:
        assert call.status is not None
        # Proxies must not hold back a stream.
        headers = {"X-Accel-Buffering": "no"}
        super().__init__(relay.body(core, endpoint, call), call.status, headers, call.content_type)
        self._leave = partial(relay.leave, core, endpoint, call)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _while_connected(Request(scope, receive), self.stream_response(send))
        finally:
            # Starlette does not close the iterator of an aborted stream.
            self._leave()


async def _while_connected(request: Request, work: Any) -> Any:
    """Wait for a result; None if the client disconnects before."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for each in (working, leaving):
            each.cancel()
        await asyncio.wait((working, leaving))


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
