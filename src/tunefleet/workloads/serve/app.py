"""The routes of OpenAI's API for a model in an engine."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tunefleet.errors import InputError, TunefleetError
from tunefleet.schemas.chat import ChatPiece, ChatRequest, ChatUsage
from tunefleet.schemas.endpoints import openai_error
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.validation_errors import summary
from tunefleet.workloads.chat.run import answer
from tunefleet.workloads.common.job_secrets import redacted
from tunefleet.workloads.serve.models import ServedModels
from tunefleet.workloads.serve.requests import CompletionRequest, complete

B = TypeVar("B", bound=BaseModel)
Pieces = AsyncIterator[ChatPiece]
# nginx's status for a client that disconnected; no one receives it.
_CLIENT_CLOSED: Final = 499


class RefusedError(Exception):
    """A request that cannot be answered, with its status."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class OpenAiRoutes:
    """Handlers of the routes."""

    def __init__(self, models: ServedModels, inference: InferenceSpec) -> None:
        self._models = models
        self._inference = inference
        self._created = int(time.time())

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/v1/models", self.list_models),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.completions, methods=["POST"]),
            ],
            exception_handlers={RefusedError: _refused, TunefleetError: _failed, HTTPException: _no_route},
        )

    async def health(self, _: Request) -> Response:
        """Answer that the model is loaded."""
        return Response()

    async def list_models(self, _: Request) -> Response:
        """List the ids that a request may name as `model`."""
        about = {"object": "model", "created": self._created, "owned_by": "tunefleet"}
        return JSONResponse({"object": "list", "data": [{"id": name, **about} for name in self._models.names]})

    async def chat(self, request: Request) -> Response:
        """Create a chat completion."""
        body = await self._body(request, ChatRequest)
        pieces = _in_thread(lambda: answer(self._models, self._inference, body))
        head = _head("chatcmpl", "chat.completion", body.model)
        if not body.stream:
            text, last = await _while_connected(request, _gather(pieces))
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": last.finish}
            return JSONResponse({**head, "choices": [choice], "usage": _usage(last.usage)})
        head["object"] = "chat.completion.chunk"

        def chunk(piece: ChatPiece) -> dict[str, Any]:
            return {"index": 0, "delta": {"content": piece.text} if piece.text else {}, "finish_reason": piece.finish}

        # OpenAI clients take the role from the first chunk.
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return await _stream(head, first, pieces, chunk, with_usage=_wants_usage(body))

    async def completions(self, request: Request) -> Response:
        """Create a completion of a text."""
        body = await self._body(request, CompletionRequest)
        pieces = _in_thread(lambda: complete(self._models, self._inference, body))
        head = _head("cmpl", "text_completion", body.model)
        if not body.stream:
            text, last = await _while_connected(request, _gather(pieces))
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": last.finish}
            return JSONResponse({**head, "choices": [choice], "usage": _usage(last.usage)})

        def chunk(piece: ChatPiece) -> dict[str, Any]:
            return {"index": 0, "text": piece.text, "logprobs": None, "finish_reason": piece.finish}

        return await _stream(head, None, pieces, chunk, with_usage=_wants_usage(body))

    async def _body(self, request: Request, kind: type[B]) -> B:
        try:
            body = kind.model_validate_json(await request.body())
        except ValidationError as error:
            message = summary(error.errors(include_url=False), quoted=False)
            raise RefusedError(400, f"The request is invalid: {message}.", "invalid_request") from None
        name = getattr(body, "model", None)
        if name is not None and name not in self._models.names:
            known = ", ".join(self._models.names)
            raise RefusedError(404, f"There is no model {name!r}; this endpoint has: {known}.", "model_not_found")
        return body


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return JSONResponse(openai_error(error.status, str(error), error.code), error.status)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"This endpoint does not support {request.method} {request.url.path}."
    return JSONResponse(openai_error(error.status_code, message, "not_found"), error.status_code)


async def _failed(_: Request, error: Exception) -> Response:
    return JSONResponse(*_of_failure(error))


def _of_failure(error: BaseException) -> tuple[dict[str, Any], int]:
    if isinstance(error, TunefleetError):
        status = 400 if isinstance(error, InputError) else 503
        return openai_error(status, redacted(error.message), error.code, error.hint), status
    return openai_error(500, redacted(f"{type(error).__name__}: {error}"), "internal"), 500


def _head(prefix: str, kind: str, model: str | None) -> dict[str, Any]:
    return {"id": f"{prefix}-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


def _usage(usage: ChatUsage | None) -> dict[str, int]:
    found = usage or ChatUsage()
    return {**found.model_dump(), "total_tokens": found.prompt_tokens + found.completion_tokens}


def _wants_usage(body: ChatRequest | CompletionRequest) -> bool:
    return body.stream_options is not None and body.stream_options.include_usage is True


async def _gather(pieces: Pieces) -> tuple[str, ChatPiece]:
    texts, last = [], ChatPiece()
    async for piece in pieces:
        texts.append(piece.text)
        last = piece
    return "".join(texts), last


async def _stream(
    head: dict[str, Any],
    first: dict[str, Any] | None,
    pieces: Pieces,
    chunk: Callable[[ChatPiece], dict[str, Any]],
    *,
    with_usage: bool,
) -> Response:
    # Waits for the first piece: a request that cannot be answered gets an error status, not a stream.
    begun = await anext(pieces)

    async def events() -> AsyncIterator[bytes]:
        if first is not None:
            yield _event({**head, "choices": [first]})
        piece = begun
        try:
            while True:
                yield _event({**head, "choices": [chunk(piece)]})
                if piece.finish is not None:
                    break
                piece = await anext(pieces)
            if with_usage:
                yield _event({**head, "choices": [], "usage": _usage(piece.usage)})
        except Exception as error:  # noqa: BLE001 -- the status is sent; the client gets the error as an event
            yield _event(_of_failure(error)[0])
            return
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


T = TypeVar("T")


async def _while_connected(request: Request, work: Awaitable[T]) -> T:
    """Wait for a response; the work is cancelled if the client disconnects."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RefusedError(_CLIENT_CLOSED, "The client disconnected.", "cancelled")
        return working.result()
    finally:
        for each in (working, leaving):
            each.cancel()
        await asyncio.wait((working, leaving))


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _in_thread(make: Callable[[], Iterator[ChatPiece]]) -> Pieces:
    """Yield the pieces of a blocking generator that runs in a thread; it is closed when this generator is."""
    loop, left = asyncio.get_running_loop(), threading.Event()
    # Bounded by the maximum length of an answer.
    arrived: asyncio.Queue[ChatPiece | BaseException | None] = asyncio.Queue()

    def put(piece: ChatPiece | BaseException | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(arrived.put_nowait, piece)

    def pump() -> None:
        source = make()
        try:
            for piece in source:
                if left.is_set():
                    return
                put(piece)
            put(None)
        except BaseException as error:  # noqa: BLE001 -- raised again by the reader
            put(error)
        finally:
            source.close()  # type: ignore[attr-defined]

    threading.Thread(target=pump, name="answer", daemon=True).start()
    try:
        while (piece := await arrived.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:
        left.set()
