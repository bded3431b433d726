"""Stream files in and out: bodies into a resumable upload, and files out with ranges.

Disk and digest work runs in threads, two batches at most in memory, so that neither a large file nor many of them
stall the event loop. Knows nothing of who may read what.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar

from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from tunefleet.server import problems

T = TypeVar("T")
_UPLOAD_BATCH_BYTES: Final = 2 << 20
"""A hand-over to a thread waits for the interpreter's lock: small batches halve the speed, large ones cost memory."""
_DOWNLOAD_PIECE_BYTES: Final = 1 << 20


async def drain(request: Request, write: Callable[[bytes], object]) -> None:
    """Write a request's body as it arrives; one batch is on its way to the disk while the next one gathers.

    Args:
        request: The upload. If its connection breaks, what arrived is written before the error goes on.
        write: Writes bytes; called in a thread, never twice at once.

    Raises:
        ClientDisconnect: If the connection broke before the end of the body.
    """
    writing: asyncio.Task[None] | None = None
    try:
        async for batch in _batches(request):
            if writing is not None:
                await asyncio.shield(writing)
            writing = asyncio.create_task(asyncio.to_thread(_write_all, write, batch))
    finally:
        if writing is not None:
            await to_the_end(writing)


async def to_the_end(work: Awaitable[T]) -> T:
    """Await work in a thread to its end, even if the request is cancelled meanwhile.

    A thread cannot be cancelled: it would go on with a file that the handler closes next.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def _write_all(write: Callable[[bytes], object], batch: list[bytes]) -> None:
    write(b"".join(batch))


async def _batches(request: Request) -> AsyncIterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            batch.append(chunk)
            size += len(chunk)
            if size >= _UPLOAD_BATCH_BYTES:
                yield batch
                batch, size = [], 0
    except ClientDisconnect:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


class BlobResponse(FileResponse):
    """A stored file, whole or in ranges, in pieces that keep a fast network busy."""

    chunk_size = _DOWNLOAD_PIECE_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a range that Starlette refuses in plain text becomes a problem, as all errors are."""
        refused: Message | None = None

        async def pass_on(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
                refused = message
            if refused is None:
                await send(message)

        await super().__call__(scope, receive, pass_on)
        if refused is not None:
            wanted = Headers(scope=scope).get("range", "")
            answer = problems.problem(
                "range_invalid",
                f"The range {wanted[:100]!r} is not in this file.",
                status=refused["status"],
                hint="Ask for `bytes=FIRST-LAST` with FIRST below the file's size.",
                headers={k: v for k, v in Headers(raw=refused["headers"]).items() if k == "content-range"},
            )
            await answer(scope, receive, send)


def send(request: Request, path: Path, digest: str, *, filename: str | None = None, immutable: bool = True) -> Response:
    """Answer with a stored file; its digest is its ETag.

    A browser must never run what a user stored: the file is an attachment of no type, in a sandbox of its own.

    Args:
        request: Asks for the file, perhaps for a range of it.
        path: Where the file lies.
        digest: Its sha256.
        filename: What a browser should call it.
        immutable: Whether the address always leads to these bytes, as one with a digest does and a name does not.
    """
    headers = {
        "ETag": f'"{digest}"',
        "Cache-Control": "private, max-age=31536000, immutable" if immutable else "private, no-cache",
        "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    }
    if digest in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return BlobResponse(path, headers=headers, media_type="application/octet-stream", filename=filename or digest)
