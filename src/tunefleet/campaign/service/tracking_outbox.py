"""Outbox of cycles for experiment trackers: filled with the outcome of `record`, retried until delivered.

A campaign does not wait for deliveries, and its state does not depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tunefleet.campaign.service import cycles
from tunefleet.campaign.service.cycle_state import CycleState, Unreadable
from tunefleet.campaign.service.status import parsed, topic
from tunefleet.db import Connection, wake
from tunefleet.db.campaigns import campaigns
from tunefleet.db.campaigns import cycles as cycle_rows
from tunefleet.db.campaigns.campaigns import LineRow
from tunefleet.db.campaigns.cycles import (
    TrackingRow,
    any_undelivered,
    change_tracking,
    forget_tracking,
    next_delivery_at,
    undelivered,
)
from tunefleet.lifecycle.cycle import StepName
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator.context import ServerContext

FIRST_PAUSE_S: Final = 60.0
MAX_PAUSE_S: Final = 3600.0
MAX_TEXT: Final = 1000
_BATCH: Final = 100
# Of consecutive failures the first and then every n-th is logged; the cycle's view shows the newest one.
_LOG_EVERY: Final = 10


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """A cycle that has yet to be delivered to a tracker."""

    state: CycleState
    tracker: str
    revision: int
    recorded_at: float
    cost: float
    row: TrackingRow

    @property
    def key(self) -> str:
        """Unique key among all campaigns."""
        return f"{self.state.campaign_id}/{self.state.number}/{self.tracker}"


def pause_s(tries: int) -> float:
    """Return the exponential backoff after consecutive failures, in seconds."""
    return min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16), MAX_PAUSE_S)


class TrackingOutbox:
    """Pending tracker deliveries of all campaigns of a server."""

    def __init__(self, core: ServerContext) -> None:
        self._core = core

    async def due(self) -> list[PendingDelivery]:
        """Return the deliveries that are due now."""
        now = self._core.clock.wall()

        def operation(connection: Connection) -> list[PendingDelivery]:
            unreadable.clear()
            found = []
            for row in undelivered(connection, now, limit=_BATCH):
                try:
                    found.append(_untold(connection, row))
                except Unreadable as error:
                    unreadable.append((row, str(error)))
            return [each for each in found if each is not None]

        unreadable: list[tuple[TrackingRow, str]] = []
        found = await self._core.read(operation)
        for row, why in unreadable:
            await self._retry_later(row, why)
        return found

    async def next_at(self) -> float | None:
        """Return the Unix time when the next delivery is due that is not due yet; None if there is none."""
        now = self._core.clock.wall()
        return await self._core.read(lambda connection: next_delivery_at(connection, now))

    async def waits(self) -> bool:
        """Whether any delivery is pending, now or later."""
        return await self._core.read(any_undelivered)

    async def delivered(self, untold: PendingDelivery, place: str) -> None:
        """Record that a cycle was delivered to a tracker."""
        text = scrub(place)[:MAX_TEXT]

        def operation(connection: Connection) -> None:
            now = self._core.clock.wall()
            if change_tracking(connection, untold.row, {"told_at": now, "place": text, "error": None}):
                _log(connection, untold.row, "info", f"recorded in {untold.tracker}: {text}", now)

        await self._core.write(operation)

    async def failed(self, untold: PendingDelivery, why: str) -> float:
        """Record a failed delivery, and return the seconds until the retry."""
        return await self._retry_later(untold.row, why)

    async def _retry_later(self, row: TrackingRow, why: str) -> float:
        text, tries = scrub(why)[:MAX_TEXT], row.tries + 1
        again_s = pause_s(tries)

        def operation(connection: Connection) -> None:
            now = self._core.clock.wall()
            changes = {"tries": tries, "not_before": now + again_s, "error": text}
            changed = change_tracking(connection, row, changes)
            # A tracker that is down for days must not fill the campaign's log.
            if changed and (tries == 1 or tries % _LOG_EVERY == 0 or text != row.error):
                more = f"{text} Retrying in {again_s:,.0f} s; the campaign continues."
                _log(connection, row, "warning", f"cannot record the cycle in {row.tracker}: {more}", now)

        await self._core.write(operation)
        return again_s

    async def drop(self, untold: PendingDelivery) -> None:
        """Drop a delivery to a tracker that the campaign no longer uses."""

        def operation(connection: Connection) -> None:
            now = self._core.clock.wall()
            forget_tracking(connection, untold.row)
            _log(connection, untold.row, "info", f"the cycle is no longer recorded in {untold.tracker}", now)

        await self._core.write(operation)


def _untold(connection: Connection, row: TrackingRow) -> PendingDelivery | None:
    campaign = campaigns.by_seq(connection, row.campaign_seq)
    cycle = cycle_rows.get(connection, row.campaign_seq, row.cycle)
    assert campaign is not None, "campaigns are never removed"
    assert cycle is not None, "nor are their cycles"
    state = cycles.state_of(connection, campaign, cycle)
    if StepName.RECORD not in state.outcomes:
        return None  # its merge is being repeated; `record` will enter the cycle again
    # Tracker settings of the newest spec apply, so that a corrected typo also helps pending deliveries.
    now = parsed(campaign.spec)
    spec = state.spec.model_copy(update={"wandb_project": now.wandb_project, "tracking": now.tracking})
    cost = campaigns.spend_of_cycles(connection, row.campaign_seq).get(row.cycle, 0.0)
    return PendingDelivery(replace(state, spec=spec), row.tracker, row.revision, row.recorded_at, cost, row)


def _log(connection: Connection, row: TrackingRow, level: str, text: str, now: float) -> None:
    campaigns.add(connection, LineRow(row.campaign_seq, row.cycle, None, level, text, now))
    campaign = campaigns.by_seq(connection, row.campaign_seq)
    if campaign is not None:
        wake(connection, topic(campaign.id))
