"""Results and files of tasks in the format of the Worker Guide; views of result envelopes and artifacts."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import HTTPException, Query, Request, Response

from tunefleet.api import file_transfer
from tunefleet.api.auth import (
    CoreDep,
    MemberOrAttempt,
    ReaderOrAttempt,
    identify,
    identify_if_known,
    reader_or_attempt,
)
from tunefleet.api.multipart import FilePart
from tunefleet.api.routers import api_router
from tunefleet.artifacts import Intake
from tunefleet.errors import InputError, QuotaError
from tunefleet.orchestrator.access.permissions import Caller
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.storage import artifacts
from tunefleet.orchestrator.storage import result_files as results
from tunefleet.orchestrator.storage.signed_urls import Signature, Signer
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.worker_guide import OWN_NAMES, ResultEnvelope, ResultFiles, ResultStored

router = api_router(prefix="/results", tags=["results"])

_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}
Expires = Annotated[int | None, Query(ge=0, le=2**40, description="Signed links only: expiry as Unix time.")]
Signed = Annotated[
    str | None, Query(max_length=128, description="Signed links only: the signature, which replaces an API key.")
]


@router.post("")
async def post(core: CoreDep, who: MemberOrAttempt, body: ResultEnvelope) -> ResultStored:
    """Store the result of a running task. A result that the attempt reports when it ends replaces it."""
    if not body.task_id.strip():
        raise HTTPException(400, "`task_id` must not be empty.")
    return await results.post(core, who, body)


@router.get("/{task_id}")
async def get(request: Request, core: CoreDep, who: ReaderOrAttempt, task_id: str) -> dict[str, Any]:
    """Retrieve the stored result of a task and its origin, with new links to its files."""
    return await results.envelope(core, who, task_id, _signer(request, core))


@router.post("/{task_id}/files", openapi_extra=_FORM)
async def upload(request: Request, core: CoreDep, who: MemberOrAttempt, task_id: str) -> ResultStored:
    """Upload one file of a task as multipart form data, in the field `file`. The file name must not contain folders.

    `responses.json`, `results.json` and `manifest.json` are reserved: they show the result, which you store with `POST
    /api/v1/results`, and the list of files.
    """
    await results.may_store(core, who, task_id)
    room = await artifacts.upload_limit(core, who)

    def check(size_bytes: int) -> None:
        if room is not None and size_bytes > room:
            raise QuotaError(
                f"The file exceeds the project's remaining storage quota of {room:,} bytes.",
                hint="Delete artifacts or runs, or ask an admin to raise it: tunefleet projects set PROJECT "
                "--storage N.",
            )

    incoming = await asyncio.to_thread(Intake, core.blobs, check)
    try:
        entry = await _take(request, core, who, incoming)
        return await results.store(core, who, task_id, entry, _signer(request, core))
    except InputError as error:
        raise HTTPException(400, str(error)) from error
    finally:
        await file_transfer.to_the_end(asyncio.to_thread(incoming.close))


async def _take(request: Request, core: ServerContext, who: Caller, incoming: Intake) -> FileEntry:
    part = FilePart(request.headers.get("content-type", ""), incoming.write, reserved=OWN_NAMES)
    await file_transfer.drain(request.stream(), file_transfer.one_by_one(part.feed))
    name = part.finish()
    await artifacts.reserve(core, who, incoming.digest, incoming.size_bytes)
    scope = artifacts.scope_of(who.project)
    digest = await file_transfer.kept(core.blobs, partial(incoming.finish, scope))
    return FileEntry(path=name, digest=digest, size_bytes=incoming.size_bytes)


@router.get("/{task_id}/files")
async def list_files(request: Request, core: CoreDep, who: ReaderOrAttempt, task_id: str) -> ResultFiles:
    """List the files of a task, each with a signed link that needs no key until it expires."""
    return await results.files(core, who, task_id, _signer(request, core))


@router.head("/{task_id}/files/{name:path}", include_in_schema=False)
@router.get(
    "/{task_id}/files/{name:path}", response_class=file_transfer.BlobResponse, responses=file_transfer.ELSEWHERE
)
async def download(
    request: Request,
    core: CoreDep,
    task_id: str,
    name: str,
    expires: Expires = None,
    signature: Signed = None,
) -> Response:
    """Download one file of a task, with an API key or a signed link. Supports `HEAD`, `Range` and `If-None-Match`."""
    link = None if expires is None or signature is None else Signature(expires, signature)
    # A key next to a signed link may be another server's: workflow files set headers for all URLs alike.
    who = await identify(request) if link is None else await identify_if_known(request)
    if who is not None and link is None:
        who = reader_or_attempt(request, who)
    found = await results.find(core, who, task_id, name, link)
    short = found.name.rpartition("/")[2]
    if found.body is None:
        return await file_transfer.send(
            request, core.blobs, found.digest, filename=short, immutable=False, size_bytes=found.size_bytes
        )
    return file_transfer.send_made(request, found.body)


def _signer(request: Request, core: ServerContext) -> Signer:
    return results.signer(core, str(request.base_url))
