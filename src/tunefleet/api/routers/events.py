"""Events, as a list and as a stream."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query, Request, Response

from tunefleet.api import live_stream, sse
from tunefleet.api.auth import CoreDep, Reader
from tunefleet.api.query_params import names
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.telemetry import live_feed
from tunefleet.orchestrator.telemetry import live_feed as live_service
from tunefleet.orchestrator.telemetry.live_feed import StreamPosition
from tunefleet.schemas.api import EventView

router = api_router(tags=["events"])

EventId = Annotated[int, Query(ge=0, le=2**62)]
Kinds = Annotated[
    str | None, Query(description="Comma-separated event kinds. Default: all.", examples=["task.completed"])
]


@router.get("/events")
async def list_events(
    core: CoreDep,
    who: Reader,
    after: EventId = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    task_id: str | None = None,
    workflow_id: str | None = None,
    kinds: Kinds = None,
) -> list[EventView]:
    """List events after an id, oldest first."""
    return await live_feed.events_after(
        core, who, after, limit=limit, task_id=task_id, workflow_id=workflow_id, kinds=names(kinds)
    )


@router.get("/events/stream", response_class=sse.EventStream)
async def follow_events(
    request: Request,
    core: CoreDep,
    who: Reader,
    after: EventId | None = None,
    last_event_id: Annotated[int | None, Header(ge=0, le=2**62)] = None,
    task_id: str | None = None,
    workflow_id: str | None = None,
    kinds: Kinds = None,
) -> Response:
    """Stream events.

    The stream starts after `Last-Event-ID` or `after`; without either, with the next event. Each message is an event.
    Messages of type `progress` have the same shape, but no id and no position in the list: they report the progress of
    running tasks.
    """
    start = last_event_id if last_event_id is not None else after
    if start is None:
        start = await live_feed.last_event_id(core, who)
    wanted = sse.EventFilter(task_id, workflow_id, names(kinds))
    return sse.respond(request, sse.follow_events(core, who, wanted, start))


@router.get("/live", response_class=sse.EventStream)
async def follow_everything(
    request: Request,
    core: CoreDep,
    who: Reader,
    after: Annotated[str | None, Query(max_length=8000, description="Id of the last message received.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=8000)] = None,
    points: Annotated[
        str | None,
        Query(max_length=8000, description="Ids of up to 8 tasks to stream points of. `hello` lists unknown ids."),
    ] = None,
) -> Response:
    """Stream all updates that the web UI shows.

    Messages are `hello` (`LiveHello`), `events` (`LiveEvents`), `progress` (`LiveProgress`), `campaigns`
    (`LiveCampaigns`), `loads` (`LiveLoads`) and `points` (`LivePoints`). Updates within a short interval are sent
    together. The id of a message is a position in all feeds: reconnect with `Last-Event-ID` or `after` to continue
    without a gap. Without either, the stream starts with the next update.
    """
    position = last_event_id or after
    place = StreamPosition.read(position) if position else StreamPosition(await live_feed.last_event_id(core, who))
    known, unknown = await live_service.followed(core, who, names(points) or (), place.points)
    stream = live_stream.Live(core, who, StreamPosition(place.event_id, known), unknown)
    stream.refuse_many()
    return sse.respond(request, stream.messages())
