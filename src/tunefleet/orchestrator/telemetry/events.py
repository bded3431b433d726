"""The event feed."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.db.repositories import events
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.pagination import bounded
from tunefleet.orchestrator.views import event_view
from tunefleet.schemas.api import EventView


async def after(
    core: ServerContext,
    actor: Actor,
    event_id: int,
    *,
    limit: int = 100,
    task_id: str | None = None,
    workflow_id: str | None = None,
    kinds: Sequence[str] | None = None,
) -> list[EventView]:
    """Return events after an id, oldest first; the topic `events` is notified of new ones.

    Args:
        event_id: The last event that the caller has; 0 for none.
    """
    may_read(actor)
    rows = await core.read(
        lambda connection: events.after(
            connection,
            event_id,
            project=actor.project,
            limit=bounded(limit),
            task_id=task_id,
            workflow_id=workflow_id,
            kinds=kinds,
        )
    )
    return [event_view(row) for row in rows]


async def last_id(core: ServerContext, actor: Actor) -> int:
    """Return the id of the newest event, to follow the feed from now on."""
    may_read(actor)
    return await core.read(events.last_id)
