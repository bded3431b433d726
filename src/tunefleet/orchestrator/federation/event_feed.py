"""Events of one federation, filtered for the participant that reads them."""

from __future__ import annotations

from typing import Final

from tunefleet.db import Connection
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import events
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation.participants import FederationCaller
from tunefleet.orchestrator.federation.status import find, may_read_all_updates, may_read_updates
from tunefleet.orchestrator.views import event_view
from tunefleet.schemas.api import EventView

PAGE = 500
# Fields of another worker's event that every participant may see.
_PUBLIC_FIELDS: Final = ("federation", "number", "round")


async def after(core: ServerContext, caller: FederationCaller, reference: str, event_id: int) -> list[EventView]:
    """Return a page of a federation's events after the given one, oldest first."""

    def operation(connection: Connection) -> list[EventView]:
        row = find(connection, caller, reference)
        found = events.after(connection, event_id, project=row.project, limit=PAGE, federation_seq=row.seq)
        return [_filtered(caller, row, event_view(each)) for each in found]

    return await core.read(operation)


def _filtered(caller: FederationCaller, row: FederationRow, event: EventView) -> EventView:
    """Return an event without the details of updates that the caller may not see."""
    worker = event.data.get("worker")
    if worker is not None and not may_read_updates(caller, row, worker):
        return event.model_copy(update={"data": {key: event.data[key] for key in _PUBLIC_FIELDS if key in event.data}})
    if worker is None and not may_read_all_updates(caller, row):
        # A round's error quotes the error of one worker's update.
        return event.model_copy(update={"data": {key: value for key, value in event.data.items() if key != "error"}})
    return event


async def start(core: ServerContext, caller: FederationCaller, reference: str, event_id: int | None) -> tuple[str, int]:
    """Return a federation's id and the event to resume after; by default the newest one."""

    def operation(connection: Connection) -> tuple[str, int]:
        row = find(connection, caller, reference)
        return row.id, events.last_id(connection) if event_id is None else event_id

    return await core.read(operation)
