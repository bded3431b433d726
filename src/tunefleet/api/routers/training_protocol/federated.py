"""Routes of the upload guide: workers upload adapters, poll for new versions, and claim chunks of data.

A federation is identified by a number or an id. A client that can only be configured with a URL sends the token as HTTP
Basic; links in responses need no key.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from tunefleet.api import file_transfer, request_bodies
from tunefleet.api.auth import CoreDep, Participant, Person, identify_participant
from tunefleet.api.multipart import FilePart
from tunefleet.api.routers.training_protocol.training import documented
from tunefleet.api.training_errors import TrainingRoute
from tunefleet.errors import GoneError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import (
    data_chunks,
    delegated_access,
    guide_progress,
    service,
    upload_guide,
    versions,
)
from tunefleet.orchestrator.federation.delegated_access import Signer
from tunefleet.orchestrator.federation.participants import FederationCaller
from tunefleet.orchestrator.federation.updates import uploads
from tunefleet.orchestrator.federation.updates.acceptance import Accepted
from tunefleet.orchestrator.federation.updates.scratch import UploadFile, too_large
from tunefleet.orchestrator.storage.signed_urls import Signature
from tunefleet.schemas.api import Problem
from tunefleet.schemas.federated import (
    ADAPTER_FILE,
    AdapterTaken,
    Aggregated,
    CheckpointReply,
    ChunkClaimed,
    ClaimChunk,
    JobCreate,
    JobCreated,
    JobProgress,
    JobReply,
)

router = APIRouter(prefix="/api", tags=["federations"], route_class=TrainingRoute)

JobId = Annotated[str, Path(max_length=64, description="Id or number of the federation.")]
Step = Annotated[int, Path(ge=0, le=2**53, description="Optimizer step of the worker.")]
Expires = Annotated[int | None, Query(ge=0, le=2**40, description="Signed links only: expiry as Unix time.")]
Signed = Annotated[
    str | None, Query(max_length=128, description="Signed links only: the signature, which replaces an API key.")
]
_NEW_ROUTE: Final = "/api/training/adapters/{jobId}/{workerId}/{step}"
_DRAINED_BYTES: Final = 64 << 20
_AROUND_BYTES: Final = 1 << 20
"""Allowance for a multipart body besides its file."""
_FORM: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["adapter", "numExamples"],
                    "properties": {
                        "adapter": {"type": "string", "format": "binary"},
                        "numExamples": {"type": "integer", "minimum": 1},
                        "round": {"type": "integer", "minimum": 0},
                        "baseVersion": {"type": "integer", "minimum": 0},
                        "sha256": {"type": "string"},
                        "loss": {"type": "number"},
                        "lossBefore": {"type": "number"},
                    },
                }
            }
        },
    }
}
_NOT_MODIFIED: Final[dict[int | str, dict[str, Any]]] = {
    204: {"description": "With `after`: no newer version within `wait_s`."},
    304: {"description": "`If-None-Match` matches the newest version."},
}


@router.post("/training/adapters/{job_id}/{step}/aggregate")
async def aggregate(core: CoreDep, who: Participant, job_id: JobId, step: Step) -> Aggregated:
    """Aggregate the open round now, and wait for its version. Returns 400 if there are too few updates.

    Rounds do not depend on steps: `step` is ignored.
    """
    del step
    return await upload_guide.aggregate(core, who, job_id)


@router.post("/training/adapters/{job_id}/{worker_id}/{step}", openapi_extra=_FORM)
async def upload(
    request: Request, core: CoreDep, who: Participant, job_id: JobId, worker_id: str, step: Step
) -> AdapterTaken:
    """Upload an adapter: a `.tar.gz` of the folder that `save_pretrained` wrote, and `numExamples`.

    The adapter is validated before it counts. 422 reports the invalid tensor and the reason. A `warning` in the
    response means that the adapter does not count, and explains the fix.
    """
    try:
        return await _take(request, core, who, job_id, worker_id, step)
    except GoneError as error:
        # Not an error status: a worker that exits on one would lose what it has trained since.
        await _drain(request)
        return await upload_guide.ended_response(core, who, job_id, error)


async def _take(
    request: Request, core: ServerContext, who: FederationCaller, job_id: str, worker_id: str, step: int
) -> AdapterTaken:
    ticket = await uploads.expect(core, who, job_id, worker_id, step)
    most = ticket.spec.max_update_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most + _AROUND_BYTES:
        raise too_large(most)
    landing = await asyncio.to_thread(UploadFile, core.blobs, most)
    try:
        kind = request.headers.get("content-type", "")
        part = FilePart(kind, landing.write, field="adapter", texts=uploads.FIELDS, named=False)
        await file_transfer.drain(request.stream(), file_transfer.one_by_one(part.feed))
        part.finish()
        fields = uploads.read_fields(part.texts, ticket.spec)
        return _taken(await uploads.take_archive(core, ticket, landing, fields))
    finally:
        await file_transfer.to_the_end(asyncio.to_thread(landing.close))


def _taken(accepted: Accepted) -> AdapterTaken:
    update = accepted.update
    counts = f"counts in round {accepted.round}" if accepted.counted else "does not count"
    return AdapterTaken(
        adapter_id=update.seq,
        message=f"Update {update.seq} of {update.worker}, step {update.step}, {counts}.",
        should_aggregate=accepted.closes,
        round=accepted.round,
        version=accepted.version,
        warning=accepted.warning,
    )


async def _drain(request: Request) -> None:
    """Read and drop a body: many clients ignore a response while they are still sending."""
    left = _DRAINED_BYTES
    with contextlib.suppress(RuntimeError):  # it was read already
        async for piece in request.stream():
            left -= len(piece)
            if left < 0:
                return


@router.get("/training/checkpoints/{job_id}", response_model=CheckpointReply, responses=_NOT_MODIFIED)
async def poll(
    request: Request,
    core: CoreDep,
    who: Participant,
    job_id: JobId,
    after: Annotated[int | None, Query(ge=0, le=2**53, description="The version that you already have.")] = None,
    wait_s: Annotated[
        float,
        Query(ge=0, le=600, description="How long to wait for a newer version, in seconds. At most 50 s are used."),
    ] = 0.0,
) -> Response:
    """Retrieve the newest version: download link, number and digest. Returns 404 if there is none yet."""
    reply = await upload_guide.poll(core, who, job_id, after=after, wait_s=wait_s, sign=_signer(request, core))
    if reply is None:
        return Response(status_code=204)
    headers = {"ETag": f'"{reply.version}-{reply.sha256}"', "Cache-Control": "private, no-cache"}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    answer = request_bodies.answer(reply)
    answer.headers.update(headers)
    return answer


@router.head("/training/checkpoints/{job_id}/download", include_in_schema=False)
@router.get(
    "/training/checkpoints/{job_id}/download",
    response_class=file_transfer.BlobResponse,
    responses=file_transfer.ELSEWHERE,
)
async def download(
    request: Request,
    core: CoreDep,
    job_id: JobId,
    version: Annotated[int | None, Query(ge=1, le=2**53, description="Version number. Default: the newest.")] = None,
    expires: Expires = None,
    signature: Signed = None,
) -> Response:
    """Download a version as `.tar.gz` with its files at the root. Takes an API key or a signed link and `Range`."""
    link = None if expires is None or signature is None else Signature(expires, signature)
    who = await identify_participant(request) if link is None else None
    found, archive = await versions.download_archive(core, who, job_id, version, link)
    name = f"checkpoint-job-{job_id}-v{found.version}.tar.gz"
    return await file_transfer.send(
        request, core.blobs, archive.digest, filename=name, immutable=False, size_bytes=archive.size_bytes,
    )  # fmt: skip


@router.get(
    "/training/jobs/{job_id}/checkpoint", response_class=file_transfer.BlobResponse, responses=file_transfer.ELSEWHERE
)
async def weights(request: Request, core: CoreDep, who: Participant, job_id: JobId) -> Response:
    """Download only `adapter_model.safetensors` of the newest version."""
    file = await versions.download_file(core, who, job_id, None, ADAPTER_FILE)
    name = f"checkpoint-job-{job_id}.safetensors"
    return await file_transfer.send(request, core.blobs, file.digest, filename=name, immutable=False)


@router.post("/training/jobs", status_code=201, openapi_extra=documented(JobCreate))
async def create_job(request: Request, core: CoreDep, who: Person) -> JobCreated:
    """Create a federation in the upload guide's format. The response contains the token for its workers.

    `fed_config` takes `aggregation_algorithm`, `sync_interval`, `min_workers`, `max_workers`, and every option of a
    federation and of its strategy. The federation starts with its first upload, or when you start it.
    """
    return await upload_guide.create(core, who, await request_bodies.read(request, JobCreate))


@router.get("/training/jobs/{job_id}")
async def get_job(core: CoreDep, who: Participant, job_id: JobId) -> JobReply:
    """Retrieve a federation as a job, with its workers."""
    return await guide_progress.job(core, who, job_id)


@router.post("/training/jobs/{job_id}/start")
async def start_job(core: CoreDep, who: Person, job_id: JobId) -> JobReply:
    """Start a federation, or resume it after a pause."""
    await service.start(core, who, job_id)
    return await guide_progress.job(core, who, job_id)


@router.post("/training/jobs/{job_id}/pause")
async def pause_job(core: CoreDep, who: Person, job_id: JobId) -> JobReply:
    """Pause a federation. Updates are still accepted, but no round is closed until you resume it."""
    await service.pause(core, who, job_id)
    return await guide_progress.job(core, who, job_id)


@router.get("/training/jobs/{job_id}/progress")
async def get_progress(core: CoreDep, who: Participant, job_id: JobId) -> JobProgress:
    """Retrieve the progress of a federation: its job, its workers, and statistics."""
    return await guide_progress.progress(core, who, job_id)


@router.post("/training/jobs/{job_id}/claim-chunk", openapi_extra=documented(ClaimChunk))
async def claim_chunk(request: Request, core: CoreDep, who: Participant, job_id: JobId) -> ChunkClaimed:
    """Claim a chunk of the federation's data. A worker that already has one gets the same chunk with a renewed lease.

    Set `completedChunk` to mark a chunk as done and claim the next one. Returns 404 if none is left. When the lease of
    a worker that neither claims nor uploads expires, its chunk goes to another worker.
    """
    body = await request_bodies.read(request, ClaimChunk)
    return await data_chunks.claim(core, who, job_id, body, _signer(request, core))


@router.head("/datasets/chunks/{job_id}/{number}/download", include_in_schema=False)
@router.get(
    "/datasets/chunks/{job_id}/{number}/download",
    response_class=file_transfer.BlobResponse,
    responses=file_transfer.ELSEWHERE,
)
async def download_chunk(
    request: Request,
    core: CoreDep,
    job_id: JobId,
    number: Annotated[int, Path(ge=0, le=2**53)],
    expires: Expires = None,
    signature: Signed = None,
) -> Response:
    """Download a chunk as JSON lines, with an API key or a signed link."""
    link = None if expires is None or signature is None else Signature(expires, signature)
    who = await identify_participant(request) if link is None else None
    chunk = await data_chunks.get(core, who, job_id, number, link)
    name = f"chunk-{number}.jsonl"
    return await file_transfer.send(request, core.blobs, chunk.digest, filename=name, size_bytes=chunk.size_bytes)


@router.post(
    "/training/gradients",
    status_code=410,
    responses={410: {"model": Problem}},
    dependencies=[Depends(identify_participant)],
)
async def gradients(request: Request) -> Response:
    """Removed: gradients are no longer accepted. The response names the route for adapters."""
    await _drain(request)
    raise GoneError(
        "Gradients are no longer accepted.",
        hint=f"Upload the adapter as .tar.gz: POST {_NEW_ROUTE} (multipart: adapter, numExamples).",
    )


def _signer(request: Request, core: ServerContext) -> Signer:
    return delegated_access.signer(core, str(request.base_url))
