"""Events: what happened, as a list and as a stream."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

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
