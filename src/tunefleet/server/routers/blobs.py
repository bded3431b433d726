"""Files by digest: which are missing, resumable upload, ranged download."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Request, Response

from tunefleet.errors import NotFoundError
from tunefleet.server import bodies, files
from tunefleet.server.auth import CoreDep, MemberOrAttempt, ReaderOrAttempt
from tunefleet.services import artifacts
from tunefleet.wire.api import BlobQuery, BlobReply
from tunefleet.wire.link import Cursor

router = APIRouter(prefix="/blobs", tags=["blobs"])

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
UploadOffset = Annotated[int, Header(ge=0, le=2**62, description="Where this part of the file starts.")]
UploadLength = Annotated[int, Header(ge=0, le=2**62, description="Length of the whole file.")]


@router.post("/missing")
async def missing(core: CoreDep, who: MemberOrAttempt, query: BlobQuery) -> BlobReply:
    """Say which files the server lacks, and how much of each an earlier upload left."""
    return await artifacts.missing(core, who, query)


@router.put(
    "/{digest}",
    response_model=Cursor,
    status_code=201,
    responses={202: {"model": Cursor, "description": "A part is stored; the file is not whole yet."}},
    openapi_extra=bodies.documented(bodies.RAW),
)
async def upload(
    request: Request,
    core: CoreDep,
    who: MemberOrAttempt,
    digest: Digest,
    upload_offset: UploadOffset,
    upload_length: UploadLength,
) -> Response:
    """Store a file, or the part of it from `Upload-Offset`; a wrong offset is answered 409 with the right one."""
    reached, whole = await files.take(request, core.blobs, digest, upload_offset, upload_length)
    if whole:
        await artifacts.stored(core, who, digest, upload_length)
    return bodies.answer(Cursor(cursor=reached), 201 if whole else 202)


@router.get("/{digest}", response_class=files.BlobResponse, responses=files.ELSEWHERE)
async def download(request: Request, core: CoreDep, who: ReaderOrAttempt, digest: Digest) -> Response:
    """Download a file; takes `Range`, `If-Range` and `If-None-Match`."""
    if not await artifacts.may_read_blob(core, who, digest):
        raise NotFoundError(f"There is no file {digest}.")
    return await files.send(request, core.blobs, digest)
