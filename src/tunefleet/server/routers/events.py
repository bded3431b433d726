"""Events: what happened, as a list and as a stream."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from sse_starlette import EventSourceResponse

from tunefleet.server import streams
from tunefleet.server.auth import CoreDep, Reader
from tunefleet.server.params import names
from tunefleet.services import events
from tunefleet.wire.api import EventView

router = APIRouter(prefix="/events", tags=["events"])

EventId = Annotated[int, Query(ge=0, le=2**62)]
Kinds = Annotated[str | None, Query(description="Comma-separated; all if not given.", examples=["task.completed"])]


@router.get("")
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
    return await events.after(
        core, who, after, limit=limit, task_id=task_id, workflow_id=workflow_id, kinds=names(kinds)
    )


@router.get("/stream", response_class=EventSourceResponse)
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
    """Follow events from behind `Last-Event-ID` or `after`; without either, what happens from now on.

    Each message is an event. Messages of the type `progress` have its shape too, but neither an id nor a place in the
    list: they say where running tasks stand.
    """
    start = last_event_id if last_event_id is not None else after
    if start is None:
        start = await events.last_id(core, who)
    wanted = streams.EventFilter(task_id, workflow_id, names(kinds))
    return streams.respond(request, streams.follow_events(core, who, wanted, start))
