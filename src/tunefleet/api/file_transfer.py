"""Stream files in and out: bodies into a resumable upload, and files out with ranges.

Disk and digest work runs in threads, at most two batches in memory, so that neither one large file nor many uploads
stall the event loop. Knows nothing about who may read what.
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
from tunefleet.api.shared_reads import PIECE_BYTES, SharedFile, read
from tunefleet.artifacts import BlobStore, Link, Upload

T = TypeVar("T")
_UPLOAD_BATCH_BYTES: Final = 2 << 20
"""Each hand-over to a thread waits for the GIL: small batches halve the throughput, large ones cost memory."""
_DOWNLOAD_PIECE_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = _UPLOAD_BATCH_BYTES
"""Up to this size a file is read or written in one thread call: a call costs about as much as copying a megabyte."""
_ONE_RANGE: Final = re.compile(r"bytes=(?P<first>\d{0,18})-(?P<last>\d{0,18})")
_MEDIA_TYPE: Final = "application/octet-stream"
_BYTES: Final = {"type": "string", "format": "binary"}
ELSEWHERE: Final[dict[int | str, dict[str, Any]]] = {
    206: {"description": "The requested range of the file.", "content": {_MEDIA_TYPE: {"schema": _BYTES}}},
    304: {"description": "`If-None-Match` contains the file's digest."},
    307: {
        "description": "The server stores its files in an object store: `Location` is a short-lived link to this file."
    },
}
"""Further responses of a download."""


async def drain(pieces: AsyncIterable[bytes], write: Callable[[list[bytes]], object]) -> None:
    """Write a body as it arrives; one batch is written while the next one is received.

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
    """Start or continue an upload with a request's body.

    Returns:
        How many bytes of the file are stored, and whether it is complete.

    Raises:
        ClientDisconnect: If the connection broke before the end of the body.
        OffsetConflict: If the offset is not the current end of the upload.
        ConflictError: If another request is writing the same file.
        TooLargeError: If the body is larger than announced.
        ArtifactError: If the digest does not match.
        MachineError: If the disk is full.
    """
    announced = request.headers.get("content-length", "")
    # A store with an executor of its own sends the file on to an object store, which does not fit in one call.
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
    """Store a body that one thread call can write."""
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
    """Receive a file that is sent in one request; bytes that an earlier upload stored are not written again."""
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
        await drain(pieces, _RemainderWriter(upload).write_all)
    except BaseException:
        await to_the_end(asyncio.to_thread(upload.close))
        raise
    return lambda: upload


class _RemainderWriter:
    """Writes a file except for the part that an earlier upload stored."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._here = upload.offset

    def write_all(self, pieces: list[bytes]) -> None:
        """Write the next pieces of the file; raises as `Upload.write_all` does."""
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
        _RemainderWriter(upload).write_all(pieces)
    except BaseException:
        upload.close()
        raise
    return upload


async def keep(blobs: BlobStore, upload: Upload) -> None:
    """Hand a complete upload over to the store and close it."""

    def finish() -> None:
        with upload:
            upload.finish()

    await kept(blobs, finish)


async def kept(blobs: BlobStore, finish: Callable[[], T]) -> T:
    """Finish an upload in a thread of the store: sending it to an object store may take minutes."""
    return await to_the_end(asyncio.get_running_loop().run_in_executor(blobs.executor, finish))


async def to_the_end(work: Awaitable[T]) -> T:
    """Await work in a thread until it finishes, even if the request is cancelled meanwhile."""
    # A thread cannot be cancelled: it would keep using a file that the handler closes next.
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def one_by_one(write: Callable[[bytes], object]) -> Callable[[list[bytes]], None]:
    """Return a batch writer for `drain` that passes pieces on one at a time."""

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
    """A stored file, complete or in ranges, in pieces large enough for a fast network."""

    media_type = _MEDIA_TYPE
    chunk_size = _DOWNLOAD_PIECE_BYTES
    content: bytes | None = None
    """The complete file, if it was read already."""
    opened: SharedFile | None = None
    """The open file: it stays readable even if its name is deleted after the headers are sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; Starlette's plain-text refusal of a range becomes problem details."""
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
            range_headers = {k: v for k, v in Headers(raw=refused["headers"]).items() if k == "content-range"}
            answer = _no_such_range(Headers(scope=scope).get("range", ""), refused["status"], range_headers)
            await answer(scope, receive, send)

    async def _send_whole(self, receive: Receive, send: Send, opened: SharedFile) -> None:
        """Send the complete file."""
        disconnected = asyncio.create_task(_disconnected(receive))
        left = size_bytes = opened.status().st_size
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with contextlib.aclosing(read(Path(self.path), opened, size_bytes)) as content:
                async for piece in content:
                    left -= len(piece)
                    await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
                    if disconnected.done():
                        return
        finally:
            disconnected.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _no_such_range(wanted: str, status: int, headers: dict[str, str]) -> Response:
    return problem_details.problem(
        "range_invalid",
        f"The range {wanted[:100]!r} is outside the file.",
        status=status,
        hint="Request `bytes=FIRST-LAST` with FIRST below the file's size.",
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
    """Respond with a stored file; its digest is its ETag.

    If the store can sign links, the response redirects to one that is valid for some minutes.

    Args:
        immutable: Whether the URL always refers to these bytes: true for a digest, false for a name.

    Raises:
        NotFoundError: If the store does not have it.
        UnreachableError: If the store is unreachable.
    """
    headers = {
        "ETag": f'"{digest}"',
        "Cache-Control": "private, max-age=31536000, immutable" if immutable else "private, no-cache",
        # A browser must never run what a user stored: an attachment without a type, in a sandbox of its own.
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
        # Anyone who has the link can read the file: it must not be cached, nor leak as a referrer.
        private = {"Location": source.url, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        return Response(status_code=HTTPStatus.TEMPORARY_REDIRECT, headers=private)
    status = None if opened is None else opened.status()
    answer = BlobResponse(source, headers=headers, media_type=_MEDIA_TYPE, filename=name, stat_result=status)
    answer.opened, answer.content = opened, content
    return answer


def _look(
    blobs: BlobStore, digest: str, name: str, *, whole: bool
) -> tuple[Path | Link, SharedFile | None, bytes | None]:
    """Return a file's location, the open file if it is local, and its content if it is small and wanted completely."""
    source = blobs.source(digest, name)
    if isinstance(source, Link):
        return source, None, None
    opened = SharedFile(source)
    small = whole and opened.status().st_size <= min(_SMALL_BYTES, PIECE_BYTES)
    return source, opened, opened.piece(0) if small else None


def send_made(request: Request, body: bytes) -> Response:
    """Respond with generated JSON, or one range of it."""
    etag, size = f'"{hashlib.sha256(body).hexdigest()}"', len(body)
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Accept-Ranges": "bytes"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    asked = request.headers.get("range", "")
    found = _ONE_RANGE.fullmatch(asked)
    # Several ranges get the complete body: RFC 9110 allows a server to ignore a Range header.
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
