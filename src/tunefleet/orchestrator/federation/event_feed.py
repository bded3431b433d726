"""What happens to one federation, for who takes part in it."""

from __future__ import annotations

from typing import Final

from tunefleet.db import Connection
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import events
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation.participants import Who
from tunefleet.orchestrator.federation.status import find, sees, sees_all
from tunefleet.orchestrator.views import event_view
from tunefleet.schemas.api import EventView

PAGE = 500
_OF_ALL: Final = ("federation", "number", "round")
"""Fields of another worker's event that every participant may see."""


async def after(core: Core, who: Who, reference: str, event_id: int) -> list[EventView]:
    """Return a page of the events of a federation behind one, oldest first."""

    def operation(connection: Connection) -> list[EventView]:
        row = find(connection, who, reference)
        found = events.after(connection, event_id, project=row.project, limit=PAGE, federation_seq=row.seq)
        return [_for(who, row, event_view(each)) for each in found]

    return await core.read(operation)


def _for(who: Who, row: FederationRow, event: EventView) -> EventView:
    """Return an event as the caller may see it: without what a worker sent whose updates are none of its business."""
    worker = event.data.get("worker")
    if worker is not None and not sees(who, row, worker):
        return event.model_copy(update={"data": {key: event.data[key] for key in _OF_ALL if key in event.data}})
    if worker is None and not sees_all(who, row):
        # What was wrong with a round is what was wrong with somebody's update.
        return event.model_copy(update={"data": {key: value for key, value in event.data.items() if key != "error"}})
    return event


async def start(core: Core, who: Who, reference: str, event_id: int | None) -> tuple[str, int]:
    """Return a federation's id, and behind which event a reader goes on: by default behind the newest."""

    def operation(connection: Connection) -> tuple[str, int]:
        row = find(connection, who, reference)
        return row.id, events.last_id(connection) if event_id is None else event_id

    return await core.read(operation)
