"""What happens to one federation, for who takes part in it."""

from __future__ import annotations

from tunefleet.services.core import Core
from tunefleet.services.federation.status import find
from tunefleet.services.federation.tokens import Who
from tunefleet.services.views import event_view
from tunefleet.store import Connection, events
from tunefleet.wire.api import EventView

PAGE = 500


async def after(core: Core, who: Who, reference: str, event_id: int) -> list[EventView]:
    """Return a page of the events of a federation behind one, oldest first.

    Raises:
        NotFoundError: If there is no such federation.
        ForbiddenError: If it is none of the asker's business.
    """

    def operation(connection: Connection) -> list[EventView]:
        row = find(connection, who, reference)
        found = events.after(connection, event_id, project=row.project, limit=PAGE, federation_seq=row.seq)
        return [event_view(each) for each in found]

    return await core.read(operation)


async def start(core: Core, who: Who, reference: str, event_id: int | None) -> tuple[str, int]:
    """Return a federation's id, and behind which event a reader goes on: by default behind the newest.

    Raises:
        NotFoundError: If there is no such federation.
        ForbiddenError: If it is none of the asker's business.
    """

    def operation(connection: Connection) -> tuple[str, int]:
        row = find(connection, who, reference)
        return row.id, events.last_id(connection) if event_id is None else event_id

    return await core.read(operation)
