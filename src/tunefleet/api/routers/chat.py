"""Chat with a model: turns of a session, for users and for the worker that answers them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Final

from fastapi import Path, Request, Response
from sse_starlette import ServerSentEvent

from tunefleet.api import request_bodies, sse
from tunefleet.api.auth import CoreDep, Member, OwnAttempt, Reader
from tunefleet.api.routers import api_router
from tunefleet.errors import TunefleetError
from tunefleet.orchestrator import chat
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.chat import Turn
from tunefleet.orchestrator.context import ServerContext
from tunefleet.schemas.chat import (
    ChatHeard,
    ChatModel,
    ChatModels,
    ChatPiece,
    ChatPoll,
    ChatRequest,
    ChatTurns,
    ChatUsage,
    ChatView,
)

router = api_router(prefix="/tasks/{task_id}", tags=["chat"])

# nginx's status for a client that disconnected: only the access log sees it.
_CLIENT_CLOSED: Final = 499

_WHOLE: Final[dict[str, Any]] = {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}
_EITHER: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {**_WHOLE, sse.EventStream.media_type: {"schema": {"type": "string"}}}},
}
"""The response is a stream or one object, depending on `stream`."""

TurnId = Annotated[str, Path(max_length=100)]


@router.get("/chat")
async def get_chat(core: CoreDep, who: Reader, task_id: str) -> ChatView:
    """Retrieve a chat session: whether it is ready, and which models a turn can use."""
    return await chat.view(core, who, task_id)


@router.post("/chat", response_class=sse.EventStream, responses=_EITHER)
async def take_turn(request: Request, core: CoreDep, who: Member, task_id: str, turn: ChatRequest) -> Response:
    """Create a chat completion in the format of OpenAI's API: a stream of chunks, then `[DONE]`.

    A turn that arrives before the session is ready waits for it. An error during generation is sent as a chunk with
    `error`.
    """
    return await _answer(request, core, who, task_id, turn, stream=turn.stream is not False)


@router.post("/v1/chat/completions", responses=_EITHER)
async def complete_chat(request: Request, core: CoreDep, who: Member, task_id: str, turn: ChatRequest) -> Response:
    """Create a chat completion with an OpenAI client. Its base URL is `/api/v1/tasks/{task_id}/v1`."""
    return await _answer(request, core, who, task_id, turn, stream=turn.stream is True)


@router.get("/v1/models")
async def list_chat_models(core: CoreDep, who: Reader, task_id: str) -> ChatModels:
    """List the models of a chat session in the format of OpenAI's API."""
    found = await chat.view(core, who, task_id)
    return ChatModels(data=tuple(ChatModel(id=name) for name in found.models))


@router.delete("/chat", status_code=202)
async def end_chat(core: CoreDep, who: Member, task_id: str) -> ChatView:
    """End a chat session when its open turns are answered. The task's status becomes completed."""
    return await chat.end(core, who, task_id)


@router.post(
    "/chat/turns", response_model=ChatTurns, openapi_extra=request_bodies.documented(request_bodies.json_of(ChatPoll))
)
async def fetch_turns(request: Request, core: CoreDep, attempt: OwnAttempt) -> Response:
    """Return the turns for the worker of a chat to answer. Waits up to `wait_s` seconds for one."""
    return request_bodies.answer(await chat.poll(core, attempt, await request_bodies.read(request, ChatPoll)))


@router.post(
    "/chat/turns/{turn_id}",
    response_model=ChatHeard,
    openapi_extra=request_bodies.documented(request_bodies.json_of(ChatPiece)),
)
async def take_piece(request: Request, core: CoreDep, attempt: OwnAttempt, turn_id: TurnId) -> Response:
    """Receive a piece of an answer from the worker. The response reports whether the client is still connected."""
    return request_bodies.answer(
        await chat.receive_piece(core, attempt, turn_id, await request_bodies.read(request, ChatPiece))
    )


async def _answer(
    request: Request, core: ServerContext, who: Actor, task_id: str, wanted: ChatRequest, *, stream: bool
) -> Response:
    turn = await chat.begin(core, who, task_id, wanted)
    if stream:
        return sse.respond(request, _chunks(core, who, turn))
    whole_one = asyncio.create_task(_gathered(core, who, turn))
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait((whole_one, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not whole_one.done():
            # The client disconnected; leaving the turn cancels it at the worker.
            return Response(status_code=_CLIENT_CLOSED)
        text, last = whole_one.result()
    finally:
        for each in (whole_one, leaving):
            each.cancel()
        await asyncio.wait((whole_one, leaving))
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": last.finish}
    whole = {**_head(turn, "chat.completion"), "choices": [choice], "usage": _usage(last.usage)}
    return Response(json.dumps(whole), media_type="application/json")


async def _gathered(core: ServerContext, who: Actor, turn: Turn) -> tuple[str, ChatPiece]:
    text, last = "", ChatPiece()
    async with aclosing(chat.pieces(core, who, turn)) as pieces:
        async for piece in pieces:
            text, last = text + piece.text, piece
    return text, last


async def _left(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _chunks(core: ServerContext, who: Actor, turn: Turn) -> AsyncIterator[ServerSentEvent]:
    head = _head(turn, "chat.completion.chunk")
    try:
        # OpenAI clients take the role from the first chunk.
        yield _event({**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        async for piece in chat.pieces(core, who, turn):
            if piece.waiting is not None:
                yield _event({**head, "choices": [{"index": 0, "delta": {}}], "waiting": piece.waiting})
            if piece.text:
                yield _event({**head, "choices": [{"index": 0, "delta": {"content": piece.text}}]})
            if piece.finish is not None:
                ending = {"index": 0, "delta": {}, "finish_reason": piece.finish}
                yield _event({**head, "choices": [ending], "usage": _usage(piece.usage)})
    except TunefleetError as error:
        yield _event({"error": {"message": error.message, "hint": error.hint, "type": error.code}})
    yield ServerSentEvent("[DONE]")


def _event(data: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(json.dumps(data, ensure_ascii=False))


def _head(turn: Turn, kind: str) -> dict[str, Any]:
    return {"id": turn.id, "object": kind, "created": int(time.time()), "model": turn.request.model or turn.task_id}


def _usage(usage: ChatUsage | None) -> dict[str, int]:
    found = usage or ChatUsage()
    total = found.prompt_tokens + found.completion_tokens
    return {**found.model_dump(), "total_tokens": total}
