"""Federations: make and steer them, send updates, follow their rounds and fetch their versions."""

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
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation import event_feed, members, service, token_access, versions, views
from tunefleet.orchestrator.federation.guide import downloads, upload_guide
from tunefleet.orchestrator.federation.participants import Who
from tunefleet.orchestrator.federation.status import topic
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

FederationId = Annotated[str, Path(max_length=64, description="Its id, or its number.")]
Version = Annotated[int, Path(ge=1, le=2**53)]
_LOOK_S: Final = 10.0
_MOST_OF_A_DOCUMENT: Final = 2 << 20
"""Bytes of the JSON that stands before a file; an adapter's config may have half of it."""
_STATES: Final = get_args(FederationState)
_UPDATE_STATES: Final = get_args(UpdateState)


class FederationFilter(BaseModel):
    """Which federations to list; a filter takes several values separated by commas."""

    limit: Limit = 50
    cursor: Cursor = None
    status: Annotated[str | None, one_of(_STATES), Field(examples=["running"])] = None
    owner: str | None = None


class UpdateFilter(BaseModel):
    """Which updates to list; a filter of states takes several separated by commas."""

    limit: Limit = 50
    cursor: Cursor = None
    round: Annotated[int | None, Field(ge=1, le=2**53)] = None
    worker: str | None = None
    state: Annotated[str | None, one_of(_UPDATE_STATES), Field(examples=["counted"])] = None


@router.post("", status_code=201, openapi_extra=request_bodies.documented(request_bodies.json_of(FederationSpec)))
async def create(request: Request, core: CoreDep, who: Person, start: bool = True) -> FederationCreated:
    """Create a federation; the answer has the token that its workers need, and the secret that signs callbacks."""
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
    """Show a federation with its members and newest rounds."""
    return await service.get(core, who, federation_id)


@router.delete("/{federation_id}", status_code=204)
async def remove(core: CoreDep, who: Person, federation_id: FederationId) -> None:
    """Remove a federation that has ended, with its versions."""
    await service.remove(core, who, federation_id)


@router.post("/{federation_id}/start")
async def start_federation(core: CoreDep, who: Person, federation_id: FederationId) -> FederationDetail:
    """Let a federation run, or go on after a pause."""
    return await service.start(core, who, federation_id)


@router.post("/{federation_id}/pause")
async def pause_federation(core: CoreDep, who: Person, federation_id: FederationId) -> FederationDetail:
    """Pause a federation: updates are taken, and no round is closed until it goes on."""
    return await service.pause(core, who, federation_id)


@router.post("/{federation_id}/cancel")
async def cancel_federation(core: CoreDep, who: Person, federation_id: FederationId) -> FederationDetail:
    """End a federation for good; its versions stay."""
    return await service.cancel(core, who, federation_id)


@router.post("/{federation_id}/aggregate")
async def aggregate_now(core: CoreDep, who: Participant, federation_id: FederationId) -> Aggregated:
    """Aggregate the open round now, and answer when its version is there; not with a worker's own token."""
    return await upload_guide.aggregate(core, who, federation_id)


@router.get("/{federation_id}/token")
async def get_token(
    core: CoreDep,
    who: Person,
    federation_id: FederationId,
    worker: Annotated[WorkerName | None, Query(description="Return a token that is good for this name alone.")] = None,
) -> FederationToken:
    """Show the token that workers take part with; it is for the federation's owner and admins."""
    return await token_access.show(core, who, federation_id, worker)


@router.post("/{federation_id}/token")
async def replace_token(
    core: CoreDep, who: Person, federation_id: FederationId, replacement: TokenReplace
) -> FederationToken:
    """Take the token back and show the one that is good instead; the old one may stay good for a while."""
    return await token_access.replace(core, who, federation_id, old_for_s=replacement.old_for_s)


@router.put("/{federation_id}/members/{worker}")
async def change_member(
    core: CoreDep, who: Participant, federation_id: FederationId, worker: WorkerName, change: MemberChange
) -> MemberView:
    """Let a worker join, or change where it is told of new versions by a signed POST."""
    return await members.change(core, who, federation_id, worker, change)


@router.post("/{federation_id}/updates")
async def send_update(
    core: CoreDep, who: Participant, federation_id: FederationId, update: UpdateCreate
) -> UpdateTaken:
    """Send an update whose files were uploaded before; it is checked before it counts, and a repetition counts once."""
    return _taken(await uploads.take_update(core, who, federation_id, update))


@router.put("/{federation_id}/updates", openapi_extra=request_bodies.documented(request_bodies.RAW))
async def send_update_with_file(
    request: Request,
    core: CoreDep,
    who: Participant,
    federation_id: FederationId,
    update_length: Annotated[int, Header(ge=2, le=_MOST_OF_A_DOCUMENT, description="Bytes of the update's JSON.")],
) -> UpdateTaken:
    """Send an update and its file in one request: the JSON, `Update-Length` bytes of it, and then the file.

    Where it breaks, what arrived of the file is kept: the file alone goes on from there, and the update after it.
    """
    sent = request_bodies.Leading(request, update_length)
    update = await sent.document(UpdateCreate)
    size_bytes = max(request_bodies.length_of(request) - update_length, 0)
    found = await single_request.expect(core, who, federation_id, update, size_bytes)
    if isinstance(found, Accepted):
        async for _ in sent.file():
            pass  # a client that still sends does not see an answer
        return _taken(found)
    arrived = await file_transfer.take_whole(
        sent.file(), core.blobs, update.sha256, size_bytes, scope=scope_of(found.federation.project)
    )
    return _taken(
        await single_request.take_whole(core, found, update, arrived, partial(file_transfer.keep, core.blobs))
    )


@router.get("/{federation_id}/updates")
async def list_updates(
    core: CoreDep, who: Participant, federation_id: FederationId, wanted: Annotated[UpdateFilter, Query()]
) -> Page[UpdateView]:
    """List updates with what became of each, newest first; a worker's own token lists those of that worker."""
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
    responses={202: {"model": Reached, "description": "A part is stored; the file is not whole yet."}},
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
    """Store a file for an update, or the part of it from `Upload-Offset`.

    A wrong offset is answered 409 with the right one; a file that is there already 201, whatever is sent.
    """
    federation, known = await uploads.expect_file(core, who, federation_id, digest, upload_length)
    if known:
        async for _ in request.stream():
            pass  # a client that still sends does not see an answer
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
    responses={204: {"description": "Nothing newer within `wait_s`."}},
)
async def newest_version(
    core: CoreDep,
    who: Participant,
    federation_id: FederationId,
    after: Annotated[int, Query(ge=0, le=2**53, description="The version that the asker has.")] = 0,
    wait_s: Annotated[float, Query(ge=0, le=600, description="Wait so long for a newer one; 50 s at most.")] = 0.0,
) -> Response:
    """Show the newest version, once it is newer than `after`."""
    found = await versions.newest(core, who, federation_id, after=after, wait_s=min(wait_s, upload_guide.HELD_S))
    return Response(status_code=204) if found is None else request_bodies.answer(views.version_view(found))


@router.get(
    "/{federation_id}/versions/newest/adapter",
    response_class=file_transfer.BlobResponse,
    responses={**file_transfer.ELSEWHERE, 204: {"description": "Nothing newer within `wait_s`."}},
)
async def get_newest_adapter(
    request: Request,
    core: CoreDep,
    who: Participant,
    federation_id: FederationId,
    after: Annotated[int, Query(ge=0, le=2**53, description="The version that the asker has.")] = 0,
    wait_s: Annotated[float, Query(ge=0, le=600, description="Wait so long for a newer one; 50 s at most.")] = 0.0,
) -> Response:
    """Download the weights of the newest version, once it is newer than `after`.

    `Version` and `Round` in the answer say which it is, `Content-Location` where it stays, `Config-Digest` the sha256
    of its config; the `ETag` is that of the weights. Takes `Range` with `If-Range`, as the other does.
    """
    found = await versions.newest(core, who, federation_id, after=after, wait_s=min(wait_s, upload_guide.HELD_S))
    if found is None:
        return Response(status_code=204)
    file = downloads.file_of(found, ADAPTER_FILE)
    answer = await file_transfer.send(
        request, core.blobs, file.digest, filename=ADAPTER_FILE, immutable=False, size_bytes=file.size_bytes
    )
    # A link that leads to the store says it too: what is fetched there is checked by it.
    answer.headers["ETag"] = f'"{file.digest}"'
    answer.headers["Version"] = str(found.version)
    answer.headers["Config-Digest"] = downloads.file_of(found, CONFIG_FILE).digest
    answer.headers["Content-Location"] = f"/api/v1/federations/{federation_id}/versions/{found.version}/adapter"
    if found.round is not None:
        answer.headers["Round"] = str(found.round)
    return answer


@router.get("/{federation_id}/versions/{version}")
async def get_version(core: CoreDep, who: Participant, federation_id: FederationId, version: Version) -> VersionDetail:
    """Show a version: who gave what with which weight, what was refused, and what the strategy reports."""
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
    """Download a version's weights; takes `HEAD`, `Range` and `If-None-Match`."""
    file = await downloads.file(core, who, federation_id, version, ADAPTER_FILE)
    return await file_transfer.send(request, core.blobs, file.digest, filename=ADAPTER_FILE, size_bytes=file.size_bytes)


@router.get("/{federation_id}/versions/{version}/config")
async def get_config(
    request: Request, core: CoreDep, who: Participant, federation_id: FederationId, version: Version
) -> dict[str, Any]:
    """Return a version's `adapter_config.json`."""
    file = await downloads.file(core, who, federation_id, version, CONFIG_FILE)
    return file_transfer.send_made(request, await asyncio.to_thread(core.blobs.read, file.digest))  # type: ignore[return-value]


@router.post("/{federation_id}/rollback")
async def roll_back(core: CoreDep, who: Person, federation_id: FederationId, request: RollbackRequest) -> VersionView:
    """Bring an earlier version back: it becomes the newest one, under a number of its own."""
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
    """Follow what happens to a federation, from behind `Last-Event-ID` or `after`; without either, from now on.

    `federation.version` says that there is a new one.
    """
    asked = last_event_id if last_event_id is not None else after
    id_, start = await event_feed.start(core, who, federation_id, asked)
    return sse.respond(request, _news(core, who, id_, start), know=identify_participant)


async def _news(core: Core, who: Who, federation_id: str, start: int) -> AsyncIterator[ServerSentEvent]:
    signals = core.signals
    while not signals.closed:
        seen = signals.version(topic(federation_id))
        try:
            found = await event_feed.after(core, who, federation_id, start)
        except NotFoundError:
            return  # it was removed
        for event in found:
            yield ServerSentEvent(event.model_dump_json(), id=str(event.id), event=event.kind)
        start = found[-1].id if found else start
        if len(found) < event_feed.PAGE:
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
