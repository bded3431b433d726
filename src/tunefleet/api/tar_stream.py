"""Several stored files as one download: an uncompressed tar that is generated while it is sent."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from fastapi import Response
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import StreamingResponse

from tunefleet.artifacts import BlobStore
from tunefleet.schemas.api import FileEntry

_BLOCK: Final = tarfile.BLOCKSIZE
_END: Final = b"\0" * (2 * _BLOCK)


def send(blobs: BlobStore, name: str, files: Sequence[FileEntry], *, at: float, body: bool = True) -> Response:
    """Respond with files as `NAME.tar`, in a folder of that name."""
    # Weights do not compress; and without compression the length is known before the first byte, so that a browser can
    # show progress.
    heads = [_head(f"{name}/{file.path}", file.size_bytes, at) for file in files]
    length = sum(len(head) + _whole(file.size_bytes) for head, file in zip(heads, files, strict=True)) + len(_END)
    headers = {
        "Content-Length": str(length),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(f'{name}.tar', safe='')}",
        "Cache-Control": "private, no-cache",
    }
    if not body:
        return Response(headers=headers, media_type="application/x-tar")
    pieces = iterate_in_threadpool(_pieces(blobs, heads, files))
    return StreamingResponse(pieces, headers=headers, media_type="application/x-tar")


def _pieces(blobs: BlobStore, heads: Sequence[bytes], files: Sequence[FileEntry]) -> Iterator[bytes]:
    for head, file in zip(heads, files, strict=True):
        yield head
        yield from blobs.pieces(file.digest)
        padding = _whole(file.size_bytes) - file.size_bytes
        if padding:
            yield b"\0" * padding
    yield _END


def _head(path: str, size: int, at: float) -> bytes:
    member = tarfile.TarInfo(path)
    member.size, member.mtime, member.mode = size, int(at), 0o644
    return member.tobuf(tarfile.PAX_FORMAT)


def _whole(size: int) -> int:
    """Return the size of a file in complete tar blocks."""
    return -(-size // _BLOCK) * _BLOCK
