"""Federations: create and control them, send updates, follow their rounds and download their versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Final, cast, get_args

from fastapi import Header, Path, Query, Request, Response
from pydantic import BaseModel, Field
from sse_starlette import ServerSentEvent

from tunefleet.api import file_transfer, request_bodies, sse
from tunefleet.api.auth import CoreDep, Participant, Person, Reader, identify_participant
from tunefleet.api.query_params import Cursor, Limit, names, one_of
from tunefleet.api.routers import api_router
from tunefleet.api.routers.blobs import Digest, UploadLength, UploadOffset
from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import delegated_access, members, service, upload_guide, versions, views
from tunefleet.orchestrator.federation.participants import FederationCaller
from tunefleet.orchestrator.federation.status import PAGE, events_after, feed_start, topic
from tunefleet.orchestrator.federation.updates import single_request, uploads
from tunefleet.orchestrator.federation.updates.acceptance import Accepted
from tunefleet.orchestrator.storage.artifacts import scope_of
from tunefleet.schemas.api import Page
from tunefleet.schemas.federated import (
    ADAPTER_FILE,
    CONFIG_FILE,
    Aggregated,
    FederationCreated,
    FederationDetail,
    FederationState,
    FederationToken,
    FederationView,
    MemberChange,
    MemberView,
    RollbackRequest,
    RoundView,
    TokenReplace,
    UpdateCreate,
    UpdateState,
    UpdateTaken,
    UpdateView,
    VersionDetail,
    VersionView,
    WorkerName,
)
from tunefleet.schemas.worker_link import Cursor as Reached
from tunefleet.spec.options.federation_options import FederationSpec

router = api_router(prefix="/federations", tags=["federations"])

FederationId = Annotated[str, Path(max_length=64, description="Id or number of the federation.")]
Version = Annotated[int, Path(ge=1, le=2**53)]
_LOOK_S: Final = 10.0
_MAX_DOCUMENT_BYTES: Final = 2 << 20
"""Maximum size of the JSON before a file; an adapter config may use half of it."""
_STATES: Final = get_args(FederationState)
_UPDATE_STATES: Final = get_args(UpdateState)


class FederationFilter(BaseModel):
    """Filters of the federation list. Separate several values with commas."""

    limit: Limit = 50
    cursor: Cursor = None
    status: Annotated[str | None, one_of(_STATES), Field(examples=["running"])] = None
    owner: str | None = None


class UpdateFilter(BaseModel):
    """Filters of the update list. Separate several states with commas."""

    limit: Limit = 50
    cursor: Cursor = None
    round: Annotated[int | None, Field(ge=1, le=2**53)] = None
    worker: str | None = None
    state: Annotated[str | None, one_of(_UPDATE_STATES), Field(examples=["counted"])] = None


@router.post("", status_code=201, openapi_extra=request_bodies.documented(request_bodies.json_of(FederationSpec)))
async def create(request: Request, core: CoreDep, who: Person, start: bool = True) -> FederationCreated:
    """Create a federation. The response contains the token for its workers and the secret that signs callbacks."""
    spec = await request_bodies.read(request, FederationSpec)
    return await upload_guide.create_with_data(core, who, spec, start=start)


@router.get("")
async def list_federations(
    core: CoreDep, who: Reader, wanted: Annotated[FederationFilter, Query()]
) -> Page[FederationView]:
    """List federations, newest first."""
    return await service.list_(
        core, who, limit=wanted.limit, cursor=wanted.cursor, statuses=names(wanted.status), owner=wanted.owner
    )


@router.get("/{federation_id}")
async def get(core: CoreDep, who: Participant, federation_id: FederationId) -> FederationDetail:
    """Retrieve a federation with its members and latest rounds."""
    return await service.get(core, who, federation_id)


@router.delete("/{federation_id}", status_code=204)
async def remove(core: CoreDep, who: Person, federation_id: FederationId) -> None:
    """Delete a federation that has ended, with its versions."""
    await service.remove(core, who, federation_id)


@router.post("/{federation_id}/start")
async def start_federation(core: CoreDep, who: Person, federation_id: FederationId) -> FederationDetail:
    """Start a federation, or resume it after a pause."""
    return await service.start(core, who, federation_id)


@router.post("/{federation_id}/pause")
async def pause_federation(core: CoreDep, who: Person, federation_id: FederationId) -> FederationDetail:
    """Pause a federation. Updates are still accepted, but no round is closed until you resume it."""
    return await service.pause(core, who, federation_id)


@router.post("/{federation_id}/cancel")
async def cancel_federation(core: CoreDep, who: Person, federation_id: FederationId) -> FederationDetail:
    """Cancel a federation permanently. Its versions are kept."""
    return await service.cancel(core, who, federation_id)


@router.post("/{federation_id}/aggregate")
async def aggregate_now(core: CoreDep, who: Participant, federation_id: FederationId) -> Aggregated:
    """Aggregate the open round now, and wait for its version. Not allowed with a worker's own token."""
    return await upload_guide.aggregate(core, who, federation_id)


@router.get("/{federation_id}/token")
async def get_token(
    core: CoreDep,
    who: Person,
    federation_id: FederationId,
    worker: Annotated[
        WorkerName | None, Query(description="Return a token that is valid only for this worker name.")
    ] = None,
) -> FederationToken:
    """Retrieve the token for workers. Only for the federation's owner and admins."""
    return await delegated_access.show_token(core, who, federation_id, worker)


@router.post("/{federation_id}/token")
async def replace_token(
    core: CoreDep, who: Person, federation_id: FederationId, replacement: TokenReplace
) -> FederationToken:
    """Revoke the token and return its replacement. The old token can stay valid for a while."""
    return await delegated_access.replace_token(core, who, federation_id, old_for_s=replacement.old_for_s)


@router.put("/{federation_id}/members/{worker}")
async def change_member(
    core: CoreDep, who: Participant, federation_id: FederationId, worker: WorkerName, change: MemberChange
) -> MemberView:
    """Add a worker, or change the URL that receives a signed POST for each new version."""
    return await members.change(core, who, federation_id, worker, change)


@router.post("/{federation_id}/updates")
async def send_update(
    core: CoreDep, who: Participant, federation_id: FederationId, update: UpdateCreate
) -> UpdateTaken:
    """Submit an update whose files are already uploaded. It is validated before it counts. Repeating it is harmless."""
    return _taken(await uploads.take_update(core, who, federation_id, update))


@router.put("/{federation_id}/updates", openapi_extra=request_bodies.documented(request_bodies.RAW))
async def send_update_with_file(
    request: Request,
    core: CoreDep,
    who: Participant,
    federation_id: FederationId,
    update_length: Annotated[
        int, Header(ge=2, le=_MAX_DOCUMENT_BYTES, description="Size of the update's JSON in bytes.")
    ],
) -> UpdateTaken:
    """Submit an update and its file in one request: `Update-Length` bytes of JSON, followed by the file.

    If the connection breaks, the received part of the file is kept: upload the rest of the file, then submit the
    update.
    """
    sent = request_bodies.DocumentThenFile(request, update_length)
    update = await sent.document(UpdateCreate)
    size_bytes = max(request_bodies.length_of(request) - update_length, 0)
    found = await single_request.expect(core, who, federation_id, update, size_bytes)
    if isinstance(found, Accepted):
        async for _ in sent.file():
            pass  # read it: many clients ignore a response while they are still sending
        return _taken(found)
    arrived = await file_transfer.take_whole(
        sent.file(), core.blobs, update.sha256, size_bytes, scope=scope_of(found.federation.project)
    )
    return _taken(await single_request.accept(core, found, update, arrived, partial(file_transfer.keep, core.blobs)))


@router.get("/{federation_id}/updates")
async def list_updates(
    core: CoreDep, who: Participant, federation_id: FederationId, wanted: Annotated[UpdateFilter, Query()]
) -> Page[UpdateView]:
    """List updates with their state, newest first. A worker's own token lists only that worker's updates."""
    return await service.list_updates(
        core,
        who,
        federation_id,
        limit=wanted.limit,
        cursor=wanted.cursor,
        round_=wanted.round,
        worker=wanted.worker,
        states=names(wanted.state),
    )


@router.get("/{federation_id}/rounds")
async def list_rounds(
    core: CoreDep, who: Participant, federation_id: FederationId, limit: Limit = 50, cursor: Cursor = None
) -> Page[RoundView]:
    """List rounds, newest first."""
    return await service.list_rounds(core, who, federation_id, limit=limit, cursor=cursor)


@router.put(
    "/{federation_id}/blobs/{digest}",
    response_model=Reached,
    status_code=201,
    responses={202: {"model": Reached, "description": "A part is stored; the file is not complete yet."}},
    openapi_extra=request_bodies.documented(request_bodies.RAW),
)
async def upload_file(
    request: Request,
    core: CoreDep,
    who: Participant,
    federation_id: FederationId,
    digest: Digest,
    upload_offset: UploadOffset,
    upload_length: UploadLength,
) -> Response:
    """Upload a file for an update, or the part of it that starts at `Upload-Offset`.

    A wrong offset returns 409 with the expected one. A file that is already stored returns 201, whatever is sent.
    """
    federation, known = await uploads.expect_file(core, who, federation_id, digest, upload_length)
    if known:
        async for _ in request.stream():
            pass  # read it: many clients ignore a response while they are still sending
        await uploads.stored_file(core, who, federation, digest, upload_length)
        return request_bodies.answer(Reached(cursor=upload_length), 201)
    scope = scope_of(federation.project)
    reached, whole = await file_transfer.take(request, core.blobs, digest, upload_offset, upload_length, scope=scope)
    if whole:
        await uploads.stored_file(core, who, federation, digest, upload_length)
    return request_bodies.answer(Reached(cursor=reached), 201 if whole else 202)


@router.get("/{federation_id}/versions")
async def list_versions(
    core: CoreDep, who: Participant, federation_id: FederationId, limit: Limit = 50, cursor: Cursor = None
) -> Page[VersionView]:
    """List versions of the adapter, newest first."""
    return await versions.list_(core, who, federation_id, limit=limit, cursor=cursor)


@router.get(
    "/{federation_id}/versions/newest",
    response_model=VersionView,
    responses={204: {"description": "No newer version within `wait_s`."}},
)
async def newest_version(
    core: CoreDep,
    who: Participant,
    federation_id: FederationId,
    after: Annotated[int, Query(ge=0, le=2**53, description="The version that you already have.")] = 0,
    wait_s: Annotated[
        float,
        Query(ge=0, le=600, description="How long to wait for a newer version, in seconds. At most 50 s are used."),
    ] = 0.0,
) -> Response:
    """Retrieve the newest version, as soon as it is newer than `after`."""
    found = await versions.newest(core, who, federation_id, after=after, wait_s=min(wait_s, upload_guide.HELD_S))
    return Response(status_code=204) if found is None else request_bodies.answer(views.version_view(found))


@router.get(
    "/{federation_id}/versions/newest/adapter",
    response_class=file_transfer.BlobResponse,
    responses={**file_transfer.ELSEWHERE, 204: {"description": "No newer version within `wait_s`."}},
)
async def get_newest_adapter(
    request: Request,
    core: CoreDep,
    who: Participant,
    federation_id: FederationId,
    after: Annotated[int, Query(ge=0, le=2**53, description="The version that you already have.")] = 0,
    wait_s: Annotated[
        float,
        Query(ge=0, le=600, description="How long to wait for a newer version, in seconds. At most 50 s are used."),
    ] = 0.0,
) -> Response:
    """Download the weights of the newest version, as soon as it is newer than `after`.

    The response headers `Version` and `Round` identify it, `Content-Location` is its permanent URL, `Config-Digest` the
    SHA-256 of its config, and `ETag` that of the weights. Supports `Range` with `If-Range`.
    """
    found = await versions.newest(core, who, federation_id, after=after, wait_s=min(wait_s, upload_guide.HELD_S))
    if found is None:
        return Response(status_code=204)
    file = versions.file_of(found, ADAPTER_FILE)
    answer = await file_transfer.send(
        request, core.blobs, file.digest, filename=ADAPTER_FILE, immutable=False, size_bytes=file.size_bytes
    )
    # Also on a redirect to the object store: the client verifies the download with it.
    answer.headers["ETag"] = f'"{file.digest}"'
    answer.headers["Version"] = str(found.version)
    answer.headers["Config-Digest"] = versions.file_of(found, CONFIG_FILE).digest
    answer.headers["Content-Location"] = f"/api/v1/federations/{federation_id}/versions/{found.version}/adapter"
    if found.round is not None:
        answer.headers["Round"] = str(found.round)
    return answer


@router.get("/{federation_id}/versions/{version}")
async def get_version(core: CoreDep, who: Participant, federation_id: FederationId, version: Version) -> VersionDetail:
    """Retrieve a version: contributions and their weights, rejected updates, and the strategy's report."""
    return await versions.get(core, who, federation_id, version)


@router.head("/{federation_id}/versions/{version}/adapter", include_in_schema=False)
@router.get(
    "/{federation_id}/versions/{version}/adapter",
    response_class=file_transfer.BlobResponse,
    responses=file_transfer.ELSEWHERE,
)
async def get_adapter(
    request: Request, core: CoreDep, who: Participant, federation_id: FederationId, version: Version
) -> Response:
    """Download a version's weights. Supports `HEAD`, `Range` and `If-None-Match`."""
    file = await versions.download_file(core, who, federation_id, version, ADAPTER_FILE)
    return await file_transfer.send(request, core.blobs, file.digest, filename=ADAPTER_FILE, size_bytes=file.size_bytes)


@router.get("/{federation_id}/versions/{version}/config")
async def get_config(
    request: Request, core: CoreDep, who: Participant, federation_id: FederationId, version: Version
) -> dict[str, Any]:
    """Retrieve a version's `adapter_config.json`."""
    file = await versions.download_file(core, who, federation_id, version, CONFIG_FILE)
    return file_transfer.send_made(request, await asyncio.to_thread(core.blobs.read, file.digest))  # type: ignore[return-value]


@router.post("/{federation_id}/rollback")
async def roll_back(core: CoreDep, who: Person, federation_id: FederationId, request: RollbackRequest) -> VersionView:
    """Roll back to an earlier version. It is published as the newest version with a new number."""
    return await versions.rollback(core, who, federation_id, request.version)


@router.get("/{federation_id}/events", response_class=sse.EventStream)
async def follow(
    request: Request,
    core: CoreDep,
    who: Participant,
    federation_id: FederationId,
    after: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    last_event_id: Annotated[int | None, Header(ge=0, le=2**62)] = None,
) -> Response:
    """Stream the events of a federation.

    The stream starts after `Last-Event-ID` or `after`; without either, with the next event. `federation.version`: there
    is a new version.
    """
    asked = last_event_id if last_event_id is not None else after
    id_, start = await feed_start(core, who, federation_id, asked)
    return sse.respond(request, _news(core, who, id_, start), know=identify_participant)


async def _news(
    core: ServerContext, who: FederationCaller, federation_id: str, start: int
) -> AsyncIterator[ServerSentEvent]:
    signals = core.signals
    while not signals.closed:
        seen = signals.version(topic(federation_id))
        try:
            found = await events_after(core, who, federation_id, start)
        except NotFoundError:
            return  # it was removed
        for event in found:
            yield ServerSentEvent(event.model_dump_json(), id=str(event.id), event=event.kind)
        start = found[-1].id if found else start
        if len(found) < PAGE:
            await signals.wait(topic(federation_id), _LOOK_S, seen)


def _taken(accepted: Accepted) -> UpdateTaken:
    return UpdateTaken(
        id=accepted.update.seq,
        counted=accepted.counted,
        should_aggregate=accepted.closes,
        round=accepted.round,
        version=accepted.version,
        warning=accepted.warning,
        state=cast(Any, accepted.update.state),
        replaces=accepted.replaces,
    )
