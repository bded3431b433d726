"""Files by digest: missing files, resumable upload, range download."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path, Request, Response

from tunefleet.api import file_transfer, request_bodies
from tunefleet.api.auth import AnyAttempt, CoreDep, MemberOrAttempt, ReaderOrAttempt
from tunefleet.api.routers import api_router
from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.storage import artifacts, direct_uploads
from tunefleet.schemas.api import BlobQuery, BlobReply
from tunefleet.schemas.direct import DirectAsk, DirectGiveUp, DirectLinks, DirectLinksAsk, DirectPlan
from tunefleet.schemas.worker_link import Cursor

router = api_router(prefix="/blobs", tags=["blobs"])

UploadName = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
UploadOffset = Annotated[int, Header(ge=0, le=2**62, description="Byte offset of this part in the file.")]
UploadLength = Annotated[int, Header(ge=0, le=2**62, description="Size of the complete file in bytes.")]


@router.post("/missing")
async def missing(core: CoreDep, who: MemberOrAttempt, query: BlobQuery) -> BlobReply:
    """List which of these files the server does not have, and how many bytes of each are already uploaded."""
    reply = await artifacts.missing(core, who, query)
    return reply.model_copy(update={"direct": direct_uploads.offer(core, who)})


@router.put(
    "/{digest}",
    response_model=Cursor,
    status_code=201,
    responses={202: {"model": Cursor, "description": "The part is stored; the file is not complete yet."}},
    openapi_extra=request_bodies.documented(request_bodies.RAW),
)
async def upload(
    request: Request,
    core: CoreDep,
    who: MemberOrAttempt,
    digest: Digest,
    upload_offset: UploadOffset,
    upload_length: UploadLength,
) -> Response:
    """Upload a file, or the part that starts at `Upload-Offset`. A wrong offset returns 409 with the expected one."""
    scope = artifacts.scope_of(who.project)
    await artifacts.reserve(core, who, digest, upload_length)
    reached, whole = await file_transfer.take(request, core.blobs, digest, upload_offset, upload_length, scope=scope)
    if whole:
        await artifacts.stored(core, who, digest, upload_length)
    return request_bodies.answer(Cursor(cursor=reached), 201 if whole else 202)


@router.get("/{digest}", response_class=file_transfer.BlobResponse, responses=file_transfer.ELSEWHERE)
async def download(request: Request, core: CoreDep, who: ReaderOrAttempt, digest: Digest) -> Response:
    """Download a file. Supports `Range`, `If-Range` and `If-None-Match`."""
    if not await artifacts.may_read_blob(core, who, digest):
        raise NotFoundError(f"No such file: {digest}.")
    return await file_transfer.send(request, core.blobs, digest)


@router.post("/{digest}/direct")
async def plan(core: CoreDep, who: AnyAttempt, digest: Digest, body: DirectAsk) -> DirectPlan:
    """Start or resume a multipart upload to the object store. Only for the worker that runs the attempt."""
    return await direct_uploads.plan(core, who, digest, body.size_bytes)


@router.post("/{digest}/direct/{upload}/links")
async def links(
    core: CoreDep, who: AnyAttempt, digest: Digest, upload: UploadName, body: DirectLinksAsk
) -> DirectLinks:
    """Return short-lived upload links for parts of a file. You can request the same part again."""
    return await direct_uploads.links(core, who, digest, upload, body.parts)


@router.post("/{digest}/direct/{upload}/complete")
async def complete(core: CoreDep, who: AnyAttempt, digest: Digest, upload: UploadName) -> Cursor:
    """Complete a multipart upload. Returns after the server has read the file back and verified its digest.

    A second call while the file is being verified returns 409.
    """
    return Cursor(cursor=await file_transfer.to_the_end(direct_uploads.complete(core, who, digest, upload)))


@router.post("/{digest}/direct/{upload}/give-up", status_code=204)
async def give_up(core: CoreDep, who: AnyAttempt, digest: Digest, upload: UploadName, body: DirectGiveUp) -> None:
    """Abort a multipart upload that continues through the server. The reason is shown to users who watch the task."""
    await direct_uploads.abort(core, who, digest, upload, body.why)
