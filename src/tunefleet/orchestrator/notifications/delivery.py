"""Deliver what waits: in order for each place, again and again until it is taken or a day has passed.

What waits lies in the store, so that a restart forgets nothing. A try whose outcome could not be stored is repeated:
everything is delivered at least once, under the same id.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final, cast

from tunefleet.db import Connection
from tunefleet.db.repositories import notifications
from tunefleet.db.repositories.notifications import NoticeRow
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation import webhooks
from tunefleet.orchestrator.notifications.senders import Outcome, Sender
from tunefleet.orchestrator.notifications.triggers import TOPIC
from tunefleet.schemas.notify import Told
from tunefleet.spec.options.notify import Format

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 5.0
MAX_PAUSE_S: Final = 900.0
GIVE_UP_S: Final = 86_400.0
# Even what has waited for a day, while the server was down, is tried so often.
MIN_TRIES: Final = 5
KEEP_S: Final = 30 * 86_400.0
# What is due is looked for when something changes; this often even if nothing does.
LOOK_S: Final = 60.0
_FORGET_EVERY_S: Final = 3600.0
_AT_ONCE: Final = 8


def pause_s(tries: int) -> float:
    """Return how long to wait after so many tries."""
    return min(FIRST_PAUSE_S * 2.0 ** (tries - 1), MAX_PAUSE_S)


class Courier:
    """Delivers the notifications of a server."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._sender = Sender(core.settings)
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._forgot_at: float | None = None

    async def run_once(self) -> None:
        """Start to deliver what is due, then wait until something else may be."""
        signals = self._core.signals
        seen = signals.version(TOPIC)
        await self._forget()
        await signals.wait(TOPIC, await self.start_due(), seen)

    async def start_due(self) -> float:
        """Start to deliver what is due.

        Returns:
            In how many seconds to look again, unless something changes before.
        """
        lanes = await self._core.read(notifications.lanes)
        now = self._core.clock.wall()
        waiting = {lane: next_at for lane, next_at in lanes.items() if lane not in self._lanes}
        for lane, next_at in waiting.items():
            if next_at <= now:
                self._lanes[lane] = asyncio.create_task(self._deliver(lane), name="notifications")
        return min([LOOK_S, *(next_at - now for next_at in waiting.values() if next_at > now)])

    async def drain(self) -> None:
        """Wait until nothing is being delivered any more."""
        await asyncio.gather(*self._lanes.values())

    async def close(self) -> None:
        """Stop; what was not taken is delivered after the next start."""
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
                async with self._turns:
                    told, format_ = Told.model_validate_json(row.body), cast(Format, row.format)
                    outcome = await self._sender.send(told, format_, row.target, secret, core.clock.wall())
                if outcome.error is not None:
                    log.warning("The notification %s was not taken: %s", row.id, outcome.error)
                now = core.clock.wall()
                await core.write(partial(_settle, row=row, lane=lane, outcome=outcome, now=now))
                if core.meters is not None:
                    word = "sent" if outcome.error is None else "failed" if outcome.lasting else "later"
                    core.meters.notices.labels(format_, word).inc()
        except Exception:
            # An address is not for the log.
            log.exception(
                "Notifications to %s cannot be delivered now.", lane if lane.startswith("chn-") else "somebody"
            )
            await asyncio.sleep(FIRST_PAUSE_S)
        finally:
            self._lanes.pop(lane, None)
            core.signals.notify(TOPIC)

    async def _forget(self) -> None:
        now = self._core.clock.monotonic()
        if self._forgot_at is None or now - self._forgot_at >= _FORGET_EVERY_S:
            self._forgot_at = now
            before = self._core.clock.wall() - KEEP_S
            await self._core.write(lambda connection: notifications.delete_before(connection, before))


def _next(connection: Connection, lane: str) -> tuple[NoticeRow | None, str | None]:
    row = notifications.first_of(connection, lane)
    if row is None or row.channel_id is None:
        return row, None
    channel = notifications.by_id(connection, row.channel_id)
    return row, webhooks.secret_of(connection, row.channel_id) if channel is None else channel.secret


def _settle(connection: Connection, *, row: NoticeRow, lane: str, outcome: Outcome, now: float) -> None:
    tries = row.tries + 1
    if outcome.error is None:
        sent = {"state": "sent", "tries": tries, "error": None, "sent_at": now}
        notifications.settle(connection, row.seq, sent)
        return
    next_at = now + max(pause_s(tries), outcome.later_s or 0.0)
    too_late = next_at - row.created_at > GIVE_UP_S and tries >= MIN_TRIES
    failed: dict[str, object] = {"tries": tries, "error": outcome.error, "next_at": next_at}
    if outcome.lasting or too_late:
        failed["state"] = "failed"
    notifications.settle(connection, row.seq, failed)
    if too_late and not outcome.lasting:
        # Who could not be reached for a day is not tried with each of many by itself.
        notifications.give_up_lane(connection, lane, now - GIVE_UP_S, outcome.error)
