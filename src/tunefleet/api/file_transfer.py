"""Stream files in and out: bodies into a resumable upload, and files out with ranges.

Disk and digest work runs in threads, two batches at most in memory, so that neither a large file nor many of them
stall the event loop. Knows nothing of who may read what.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from tunefleet.api import problem_details
from tunefleet.api.shared_reads import PIECE_BYTES, Opened, read
from tunefleet.artifacts import BlobStore, Link, Upload

T = TypeVar("T")
_UPLOAD_BATCH_BYTES: Final = 2 << 20
"""A hand-over to a thread waits for the interpreter's lock: small batches halve the speed, large ones cost memory."""
_DOWNLOAD_PIECE_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = _UPLOAD_BATCH_BYTES
"""A file or body up to this length is read or written in one hand-over: each costs about as much as a megabyte."""
_ONE_RANGE: Final = re.compile(r"bytes=(?P<first>\d{0,18})-(?P<last>\d{0,18})")
_MEDIA_TYPE: Final = "application/octet-stream"
_BYTES: Final = {"type": "string", "format": "binary"}
ELSEWHERE: Final[dict[int | str, dict[str, Any]]] = {
    206: {"description": "A range of it.", "content": {_MEDIA_TYPE: {"schema": _BYTES}}},
    304: {"description": "`If-None-Match` has its digest."},
    307: {"description": "The server keeps its files in S3: `Location` is a link to this one, good for some minutes."},
}
"""What a download may also answer."""


async def drain(pieces: AsyncIterable[bytes], write: Callable[[list[bytes]], object]) -> None:
    """Write a body as it arrives; one batch is on its way to the disk while the next one gathers.

    Raises:
        ClientDisconnect: If the connection broke before the end of the body.
    """
    writing: asyncio.Task[object] | None = None
    try:
        async for batch in _batches(pieces):
            if writing is not None:
                await asyncio.shield(writing)
            writing = asyncio.create_task(asyncio.to_thread(write, batch))
    finally:
        if writing is not None:
            await to_the_end(writing)


async def take(
    request: Request, blobs: BlobStore, digest: str, offset: int, total: int, *, scope: str
) -> tuple[int, bool]:
    """Let a request's body start an upload, or go on with one.

    Returns:
        How much of the file is here, and whether it is whole and kept.

    Raises:
        ClientDisconnect: If the connection broke before the end of the body.
        OffsetConflict: If the offset is not where the upload stands.
        ConflictError: If somebody else is writing the same file.
        TooLargeError: If there are more bytes than were announced.
        ArtifactError: If the file does not have its digest.
        MachineError: If the disk is full.
    """
    announced = request.headers.get("content-length", "")
    if blobs.executor is None and announced.isdigit() and int(announced) <= _SMALL_BYTES:
        return await _take_small(request, blobs, digest, offset, total, scope)
    incoming = await asyncio.to_thread(blobs.append, digest, offset, total, scope)
    try:
        await drain(request.stream(), incoming.write_all)
        whole = await kept(blobs, incoming.finish)
    finally:
        await to_the_end(asyncio.to_thread(incoming.close))
    return incoming.offset, whole


async def _take_small(
    request: Request, blobs: BlobStore, digest: str, offset: int, total: int, scope: str
) -> tuple[int, bool]:
    """Take a body that one hand-over to a thread can write."""
    pieces: list[bytes] = []

    def keep() -> tuple[int, bool]:
        with blobs.append(digest, offset, total, scope) as incoming:
            incoming.write_all(pieces)
            whole = incoming.finish()
        return incoming.offset, whole

    try:
        async for batch in _batches(request.stream()):
            pieces += batch
    except ClientDisconnect:
        await to_the_end(asyncio.to_thread(keep))
        raise
    return await to_the_end(asyncio.to_thread(keep))


async def take_whole(
    pieces: AsyncIterable[bytes], blobs: BlobStore, digest: str, total: int, *, scope: str
) -> Callable[[], Upload]:
    """Take a file that is sent whole; what an earlier upload of it has left is not written again."""
    if blobs.executor is None and total <= _SMALL_BYTES:
        gathered: list[bytes] = []
        try:
            async for batch in _batches(pieces):
                gathered += batch
        except ClientDisconnect:
            await to_the_end(asyncio.to_thread(lambda: _written(blobs, digest, total, scope, gathered).close()))
            raise
        return partial(_written, blobs, digest, total, scope, gathered)
    upload = await asyncio.to_thread(_begun, blobs, digest, total, scope)
    try:
        await drain(pieces, _Rest(upload).write_all)
    except BaseException:
        await to_the_end(asyncio.to_thread(upload.close))
        raise
    return lambda: upload


class _Rest:
    """Writes a file, but for the part that an earlier upload has left."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._here = upload.offset

    def write_all(self, pieces: list[bytes]) -> None:
        """Take the next pieces of the file; raises as `Upload.write_all` does."""
        rest: list[bytes | memoryview] = []
        for piece in pieces:
            here = min(self._here, len(piece))
            self._here -= here
            rest.append(memoryview(piece)[here:] if here else piece)
        self._upload.write_all(rest)


def _begun(blobs: BlobStore, digest: str, total: int, scope: str) -> Upload:
    return blobs.append(digest, min(blobs.partial_size(digest, scope), total), total, scope)


def _written(blobs: BlobStore, digest: str, total: int, scope: str, pieces: list[bytes]) -> Upload:
    upload = _begun(blobs, digest, total, scope)
    try:
        _Rest(upload).write_all(pieces)
    except BaseException:
        upload.close()
        raise
    return upload


async def keep(blobs: BlobStore, upload: Upload) -> None:
    """Let the store have a whole upload, and let go of it."""

    def finish() -> None:
        with upload:
            upload.finish()

    await kept(blobs, finish)


async def kept(blobs: BlobStore, finish: Callable[[], T]) -> T:
    """Let a whole upload be kept, in a thread of the store: sending it on may take minutes."""
    return await to_the_end(asyncio.get_running_loop().run_in_executor(blobs.executor, finish))


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


def one_by_one(write: Callable[[bytes], object]) -> Callable[[list[bytes]], None]:
    """Return what writes a batch of pieces, for `drain`, where pieces are read one after another."""

    def write_all(batch: list[bytes]) -> None:
        for piece in batch:
            write(piece)

    return write_all


async def _batches(pieces: AsyncIterable[bytes]) -> AsyncIterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    try:
        async for chunk in pieces:
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

    media_type = _MEDIA_TYPE
    chunk_size = _DOWNLOAD_PIECE_BYTES
    content: bytes | None = None
    """The whole file, if it was read already."""
    opened: Opened | None = None
    """The file: what follows the headers does not depend on its name any more."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a range that Starlette refuses in plain text becomes a problem, as all errors are."""
        if self.content is not None:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self.content})
            return
        if scope["method"] == "GET" and "range" not in Headers(scope=scope) and self.opened is not None:
            await self._send_whole(receive, send, self.opened)
            return
        refused: Message | None = None

        async def pass_on(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
                refused = message
            if refused is None:
                await send(message)

        await super().__call__(scope, receive, pass_on)
        if refused is not None:
            told = {k: v for k, v in Headers(raw=refused["headers"]).items() if k == "content-range"}
            answer = _no_such_range(Headers(scope=scope).get("range", ""), refused["status"], told)
            await answer(scope, receive, send)

    async def _send_whole(self, receive: Receive, send: Send, opened: Opened) -> None:
        """Send all of the file."""
        gone = asyncio.create_task(_disconnected(receive))
        left = size_bytes = opened.status().st_size
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with contextlib.aclosing(read(Path(self.path), opened, size_bytes)) as content:
                async for piece in content:
                    left -= len(piece)
                    await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
                    if gone.done():
                        return
        finally:
            gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _no_such_range(wanted: str, status: int, headers: dict[str, str]) -> Response:
    return problem_details.problem(
        "range_invalid",
        f"The range {wanted[:100]!r} is not in this file.",
        status=status,
        hint="Ask for `bytes=FIRST-LAST` with FIRST below the file's size.",
        headers=headers,
    )


async def send(
    request: Request,
    blobs: BlobStore,
    digest: str,
    *,
    filename: str | None = None,
    immutable: bool = True,
    size_bytes: int | None = None,
) -> Response:
    """Answer with a stored file; its digest is its ETag.

    Where the store has links of its own, the answer is one that lasts for minutes. A browser must never run what a
    user stored: the file is an attachment of no type, in a sandbox of its own.

    Args:
        immutable: Whether the address always leads to these bytes, as one with a digest does and a name does not.

    Raises:
        NotFoundError: If the store does not have it.
        UnreachableError: If the store does not answer.
    """
    headers = {
        "ETag": f'"{digest}"',
        "Cache-Control": "private, max-age=31536000, immutable" if immutable else "private, no-cache",
        "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    }
    if digest in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    name = filename or digest
    whole = request.method == "GET" and "range" not in request.headers
    source, opened, content = await asyncio.to_thread(_look, blobs, digest, name, whole=whole)
    if isinstance(source, Link) and request.method == "HEAD" and size_bytes is not None:
        return Response(
            headers={**headers, "Content-Length": str(size_bytes), "Accept-Ranges": "bytes"},
            media_type=_MEDIA_TYPE,
        )
    if isinstance(source, Link):
        # The link opens the file to whoever has it: nobody keeps it, and no other site is told.
        private = {"Location": source.url, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        return Response(status_code=HTTPStatus.TEMPORARY_REDIRECT, headers=private)
    status = None if opened is None else opened.status()
    answer = BlobResponse(source, headers=headers, media_type=_MEDIA_TYPE, filename=name, stat_result=status)
    answer.opened, answer.content = opened, content
    return answer


def _look(blobs: BlobStore, digest: str, name: str, *, whole: bool) -> tuple[Path | Link, Opened | None, bytes | None]:
    """Return where a file is, the file if it is here, and its content if all of that is wanted and it is small."""
    source = blobs.source(digest, name)
    if isinstance(source, Link):
        return source, None, None
    opened = Opened(source)
    small = whole and opened.status().st_size <= min(_SMALL_BYTES, PIECE_BYTES)
    return source, opened, opened.piece(0) if small else None


def send_made(request: Request, body: bytes) -> Response:
    """Answer with JSON that was made of what the database has, or one range of it; who asks for several gets all."""
    etag, size = f'"{hashlib.sha256(body).hexdigest()}"', len(body)
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Accept-Ranges": "bytes"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    asked = request.headers.get("range", "")
    found = _ONE_RANGE.fullmatch(asked)
    if found is None or found[0] == "bytes=-" or request.headers.get("if-range", etag) != etag:
        return Response(body, media_type="application/json", headers=headers)
    if found["first"]:
        start, end = int(found["first"]), min(int(found["last"] or size) + 1, size)
    else:
        start, end = max(size - int(found["last"]), 0), size
    if start >= end:
        headers = {"Content-Range": f"bytes */{size}"}
        return _no_such_range(asked, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers)
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return Response(body[start:end], HTTPStatus.PARTIAL_CONTENT, headers, "application/json")
