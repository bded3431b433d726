"""Bodies of the hot routes: bytes to model and model to bytes, each validated once.

FastAPI would parse JSON into a dict first and validate the response again; at thousands of exchanges a second that is
half of the request time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from tunefleet.errors import InputError
from tunefleet.validation_errors import message

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
LARGE_BYTES: Final = 1 << 16
"""A body of at least this size is parsed in a thread, while the event loop serves other requests."""
# A binary body.
RAW: Final[tuple[str, dict[str, Any]]] = ("application/octet-stream", {"type": "string", "format": "binary"})


async def parsed(parse: Callable[..., T], body: bytes, *more: object) -> T:
    """Parse a body; a large one in a thread."""
    return await asyncio.to_thread(parse, body, *more) if len(body) >= LARGE_BYTES else parse(body, *more)


async def read(request: Request, model: type[M]) -> M:
    """Parse a request's JSON body."""
    return await parsed(parse, await request.body(), model)


def parse(body: bytes, model: type[M]) -> M:
    """Validate JSON."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        # Without the input, which may contain secrets.
        found = [
            {"type": "body", "loc": ("body", *each["loc"]), "msg": message(each, quoted=False)}
            for each in error.errors(include_url=False)
        ]
        raise RequestValidationError(found) from None


def length_of(request: Request) -> int:
    """Return the announced length of a body in bytes."""
    announced = request.headers.get("content-length", "")
    if not announced.isdigit():
        raise InputError("The request has no Content-Length.", hint="Send Content-Length instead of chunked encoding.")
    return int(announced)


class DocumentThenFile:
    """A body that begins with a JSON document, followed by a file."""

    def __init__(self, request: Request, length: int) -> None:
        self._stream = request.stream()
        self._length = length
        self._read = bytearray()

    async def document(self, model: type[M]) -> M:
        """Read the document; call this first."""
        while len(self._read) < self._length:
            piece = await anext(self._stream, b"")
            if not piece:
                break
            self._read += piece
        return await parsed(parse, bytes(self._read[: self._length]), model)

    async def file(self) -> AsyncIterator[bytes]:
        """Yield the bytes after the document, as they arrive."""
        if len(self._read) > self._length:
            yield bytes(memoryview(self._read)[self._length :])
        async for piece in self._stream:
            yield piece


def text(body: bytes) -> str:
    """Decode a text body."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        fault = {"type": "encoding", "loc": ("body",), "msg": f"is not valid UTF-8 at byte {error.start}"}
        raise RequestValidationError([fault]) from None


def answer(view: BaseModel, status: int = 200) -> Response:
    """Return a response with a model from a service, without validating it again."""
    return Response(view.model_dump_json(), status, media_type="application/json")


async def listed(views: Sequence[BaseModel], headers: Mapping[str, str]) -> Response:
    """Return a response with a bare list of models from a service; serialized in a thread, because it may be long."""

    def body() -> str:
        return f"[{','.join(view.model_dump_json() for view in views)}]"

    return Response(await asyncio.to_thread(body), media_type="application/json", headers=dict(headers))


def documented(*content_types: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Describe a body that a handler parses itself, for the `openapi_extra` of its route."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind, schema in content_types}}}


def json_of(model: type[BaseModel]) -> tuple[str, dict[str, Any]]:
    """Describe a JSON body of a model."""
    return "application/json", {"$ref": f"#/components/schemas/{model.__name__}"}
