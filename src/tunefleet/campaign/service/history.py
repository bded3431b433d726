"""History of a campaign: log, events, cycles and lineage."""

from __future__ import annotations

from functools import partial

from tunefleet.campaign.service import views
from tunefleet.campaign.service.status import find, topic
from tunefleet.db import Connection
from tunefleet.db.campaigns import campaigns, cycles
from tunefleet.db.campaigns.campaigns import CampaignRow
from tunefleet.db.campaigns.cycles import CycleRow
from tunefleet.db.repositories import events
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.views import before_cursor, bounded_limit, event_view
from tunefleet.schemas.api import EventView, Page
from tunefleet.schemas.campaign import CampaignLog, CycleView, LineageView

PAGE = 500


async def read_log(
    core: ServerContext,
    actor: Actor,
    reference: str,
    *,
    after: int | None = None,
    limit: int = 200,
    cycle: int | None = None,
) -> CampaignLog:
    """Return lines of the log of a campaign, oldest first.

    Raises:
        ConflictError: If several users have a campaign of that name.
    """

    def operation(connection: Connection) -> CampaignLog:
        row, count = find(connection, actor, reference), bounded_limit(limit)
        if after is None:
            found = campaigns.tail(connection, row.seq, limit=count, cycle=cycle)
        else:
            found = campaigns.after(connection, row.seq, after, limit=count, cycle=cycle)
        lines = tuple(views.line_view(row, line) for line in found)
        return CampaignLog(lines=lines, next_id=lines[-1].id if lines else after or 0)

    return await core.read(operation)


async def list_cycles(
    core: ServerContext, actor: Actor, reference: str, *, limit: int = 50, cursor: str | None = None
) -> Page[CycleView]:
    """Return cycles of a campaign with their steps, newest first; raises what `read_log` raises."""

    def operation(connection: Connection) -> Page[CycleView]:
        row, found, next_cursor = _cycles(connection, actor, reference, limit, cursor)
        return Page[CycleView](items=tuple(views.cycle_views(connection, row, found)), next_cursor=next_cursor)

    return await core.read(operation)


async def lineage(
    core: ServerContext, actor: Actor, reference: str, *, limit: int = 50, cursor: str | None = None
) -> Page[LineageView]:
    """Return the lineage of each cycle's model, newest first; raises what `read_log` raises."""

    def operation(connection: Connection) -> Page[LineageView]:
        row, found, next_cursor = _cycles(connection, actor, reference, limit, cursor)
        return Page[LineageView](items=tuple(views.lineage_views(connection, row, found)), next_cursor=next_cursor)

    return await core.read(operation)


async def events_after(core: ServerContext, actor: Actor, reference: str, event_id: int) -> list[EventView]:
    """Return a page of a campaign's events after the given one, oldest first; raises what `read_log` raises."""

    def operation(connection: Connection) -> list[EventView]:
        row = find(connection, actor, reference)
        return [event_view(each) for each in events.of_campaign(connection, row.seq, event_id, limit=PAGE)]

    return await core.read(operation)


async def follow_from(core: ServerContext, actor: Actor, reference: str, event_id: int | None) -> tuple[str, int]:
    """Return a campaign's id and the event to resume after; by default the newest one.

    Raises:
        ConflictError: If several users have a campaign of that name.
    """

    def operation(connection: Connection) -> tuple[str, int]:
        row = find(connection, actor, reference)
        return row.id, events.last_id(connection) if event_id is None else event_id

    return await core.read(operation)


async def topic_of(core: ServerContext, actor: Actor, reference: str) -> str:
    """Return the topic that a campaign's log publishes to; raises what `read_log` raises."""
    row = await core.read(partial(find, actor=actor, reference=reference))
    return topic(row.id)


def _cycles(
    connection: Connection, actor: Actor, reference: str, limit: int, cursor: str | None
) -> tuple[CampaignRow, list[CycleRow], str | None]:
    row, count = find(connection, actor, reference), bounded_limit(limit)
    found = cycles.page(connection, row.seq, limit=count + 1, before=before_cursor(cursor))
    shown = found[:count]
    return row, shown, str(shown[-1].number) if len(found) > count else None
