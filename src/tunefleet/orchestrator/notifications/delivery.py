"""Deliver pending notifications, in order per target, with retries for a day; and list them for users.

Pending notifications are in the database and survive a restart. An attempt whose outcome could not be stored is
repeated: delivery is at least once, under the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import notifications
from tunefleet.db.repositories.notifications import NoticeRow
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.notifications import federation_webhooks
from tunefleet.orchestrator.notifications.channels import find, shown
from tunefleet.orchestrator.notifications.senders import Outcome, Sender
from tunefleet.orchestrator.notifications.triggers import TOPIC
from tunefleet.orchestrator.views import before_cursor, bounded_limit, split_page, to_datetime, to_optional_datetime
from tunefleet.schemas.api import Page
from tunefleet.schemas.notify import Happened, NotificationView, WebhookPayload
from tunefleet.spec.options.notify import Format

log = logging.getLogger(__name__)
FIRST_PAUSE_S: Final = 5.0
MAX_PAUSE_S: Final = 900.0
GIVE_UP_S: Final = 86_400.0
# Minimum number of attempts, also for a notification that has waited for a day because the server was down.
MIN_TRIES: Final = 5
KEEP_S: Final = 30 * 86_400.0
# Due notifications are looked for whenever something changes, and this often otherwise.
LOOK_S: Final = 60.0
_DELETE_EVERY_S: Final = 3600.0
_MAX_CONCURRENT: Final = 8


def pause_s(tries: int) -> float:
    """Return the exponential backoff after a number of attempts, in seconds."""
    return min(FIRST_PAUSE_S * 2.0 ** (tries - 1), MAX_PAUSE_S)


class DeliveryLoop:
    """Delivers the pending notifications of a server."""

    def __init__(self, core: ServerContext) -> None:
        self._core = core
        self._sender = Sender(core.settings)
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._deleted_at: float | None = None

    async def run_once(self) -> None:
        """Start due deliveries, then wait until another one may be due."""
        signals = self._core.signals
        seen = signals.version(TOPIC)
        await self._delete_old()
        await signals.wait(TOPIC, await self.start_due(), seen)

    async def start_due(self) -> float:
        """Start due deliveries.

        Returns:
            Seconds until the next delivery is due.
        """
        lanes = await self._core.read(notifications.lanes)
        now = self._core.clock.wall()
        waiting = {lane: next_at for lane, next_at in lanes.items() if lane not in self._lanes}
        for lane, next_at in waiting.items():
            if next_at <= now:
                self._lanes[lane] = asyncio.create_task(self._deliver(lane), name="notifications")
        return min([LOOK_S, *(next_at - now for next_at in waiting.values() if next_at > now)])

    async def drain(self) -> None:
        """Wait until all started deliveries are finished."""
        await asyncio.gather(*self._lanes.values())

    async def close(self) -> None:
        """Stop; undelivered notifications are sent after the next start."""
        for task in self._lanes.values():
            task.cancel()
        await asyncio.gather(*self._lanes.values(), return_exceptions=True)
        self._sender.close()

    async def _deliver(self, lane: str) -> None:
        core = self._core
        try:
            while not core.signals.closed:
                row, secret = await core.read(lambda connection: _next(connection, lane))
                if row is None or row.next_at > core.clock.wall():
                    return
                # Within a lane deliveries are sequential; the semaphore limits how many lanes send at a time.
                async with self._slots:
                    message, format_ = WebhookPayload.model_validate_json(row.body), cast(Format, row.format)
                    outcome = await self._sender.send(message, format_, row.target, secret, core.clock.wall())
                if outcome.error is not None:
                    log.warning("Notification %s was not delivered: %s", row.id, outcome.error)
                now = core.clock.wall()
                await core.write(partial(_settle, row=row, lane=lane, outcome=outcome, now=now))
                if core.meters is not None:
                    label = "sent" if outcome.error is None else "failed" if outcome.permanent else "later"
                    core.meters.notices.labels(format_, label).inc()
        except Exception:
            # Only channel ids are logged: other lanes are addresses, which may contain secrets.
            log.exception("Delivery to %s failed unexpectedly.", lane if lane.startswith("chn-") else "an address")
            await asyncio.sleep(FIRST_PAUSE_S)
        finally:
            self._lanes.pop(lane, None)
            core.signals.notify(TOPIC)

    async def _delete_old(self) -> None:
        now = self._core.clock.monotonic()
        if self._deleted_at is None or now - self._deleted_at >= _DELETE_EVERY_S:
            self._deleted_at = now
            before = self._core.clock.wall() - KEEP_S
            await self._core.write(lambda connection: notifications.delete_before(connection, before))


def _next(connection: Connection, lane: str) -> tuple[NoticeRow | None, str | None]:
    row = notifications.first_of(connection, lane)
    if row is None or row.channel_id is None:
        return row, None
    channel = notifications.by_id(connection, row.channel_id)
    return row, federation_webhooks.secret_of(connection, row.channel_id) if channel is None else channel.secret


def _settle(connection: Connection, *, row: NoticeRow, lane: str, outcome: Outcome, now: float) -> None:
    tries = row.tries + 1
    if outcome.error is None:
        sent = {"state": "sent", "tries": tries, "error": None, "sent_at": now}
        notifications.settle(connection, row.seq, sent)
        return
    # Honors `Retry-After`.
    next_at = now + max(pause_s(tries), outcome.later_s or 0.0)
    too_late = next_at - row.created_at > GIVE_UP_S and tries >= MIN_TRIES
    failed: dict[str, object] = {"tries": tries, "error": outcome.error, "next_at": next_at}
    if outcome.permanent or too_late:
        failed["state"] = "failed"
    notifications.settle(connection, row.seq, failed)
    if too_late and not outcome.permanent:
        # A target that was unreachable for a day is not retried with each of its other old notifications.
        notifications.give_up_lane(connection, lane, now - GIVE_UP_S, outcome.error)


async def list_notifications(
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
    start, count = before_cursor(cursor), bounded_limit(limit)

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
    rows, next_cursor = split_page(found, count)
    items = tuple(_notice_view(row, names.get(row.channel_id or "")) for row in rows)
    return Page[NotificationView](items=items, next_cursor=next_cursor)


def _notice_view(row: NoticeRow, channel: str | None) -> NotificationView:
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
