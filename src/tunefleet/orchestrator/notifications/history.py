"""Delivered and pending notifications of users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import notifications
from tunefleet.db.repositories.notifications import NoticeRow
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.notifications.channels import find, shown
from tunefleet.orchestrator.pagination import before, bounded, split
from tunefleet.orchestrator.views import to_datetime, to_optional_datetime
from tunefleet.schemas.api import Page
from tunefleet.schemas.notify import Happened, NotificationView
from tunefleet.spec.options.notify import Format


async def list_(
    core: ServerContext,
    actor: Actor,
    *,
    limit: int = 100,
    cursor: str | None = None,
    task_ids: Sequence[str] | None = None,
    channel: str | None = None,
    states: Sequence[str] | None = None,
) -> Page[NotificationView]:
    """Return the actor's notifications, newest first; an admin sees those of all owners."""
    may_read(actor)
    start, count = before(cursor), bounded(limit)

    def operation(connection: Connection) -> tuple[list[NoticeRow], dict[str, str]]:
        filters = {
            "owner": None if actor.role == "admin" else [actor.owner],
            "task_id": task_ids,
            "channel_id": None if channel is None else [find(connection, actor=actor, channel=channel).id],
            "state": states,
        }
        found = notifications.page(connection, project=actor.project, limit=count + 1, before=start, filters=filters)
        return found, {each.id: each.name for each in notifications.all_rows(connection)}

    found, names = await core.read(operation)
    rows, next_cursor = split(found, count)
    items = tuple(notice_view(row, names.get(row.channel_id or "")) for row in rows)
    return Page[NotificationView](items=items, next_cursor=next_cursor)


def notice_view(row: NoticeRow, channel: str | None) -> NotificationView:
    """Show a notification."""
    return NotificationView(
        id=row.id,
        owner=row.owner,
        event=cast(Happened, row.event),
        event_id=row.event_id,
        task_id=row.task_id,
        title=str(orjson.loads(row.body)["title"]),
        channel_id=row.channel_id,
        channel=channel,
        to=shown(row.target),
        format=cast(Format, row.format),
        state=cast(Any, row.state),
        tries=row.tries,
        error=row.error,
        created_at=to_datetime(row.created_at),
        next_try_at=to_datetime(max(row.next_at, row.created_at)) if row.state == notifications.WAITING else None,
        sent_at=to_optional_datetime(row.sent_at),
    )
