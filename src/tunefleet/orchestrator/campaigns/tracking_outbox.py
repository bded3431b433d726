"""What trackers are yet to be told of cycles: entered with the outcome of `record`, and told again until it is taken.

A campaign neither waits for this nor learns of it: its state is in the store alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tunefleet.db import Connection, wake
from tunefleet.db.campaigns import campaigns, spend, tracking_outbox
from tunefleet.db.campaigns import cycles as cycle_rows
from tunefleet.db.campaigns.campaigns import LineRow
from tunefleet.db.campaigns.tracking_outbox import TrackingRow
from tunefleet.lifecycle.cycle import StepName
from tunefleet.observability.scrub import scrub
from tunefleet.orchestrator.campaigns import cycles
from tunefleet.orchestrator.campaigns.cycle_state import CycleState, Unreadable
from tunefleet.orchestrator.campaigns.status import parsed, topic
from tunefleet.orchestrator.context import Core

FIRST_PAUSE_S: Final = 60.0
MAX_PAUSE_S: Final = 3600.0
MAX_TEXT: Final = 1000
_AT_ONCE: Final = 100
# Of failures in a row the first is a line of the campaign's log, and then one in so many; all are shown with it.
_SAID_EVERY: Final = 10


@dataclass(frozen=True, slots=True)
class Untold:
    """A cycle that a tracker is to be told of."""

    state: CycleState
    tracker: str
    revision: int
    recorded_at: float
    cost: float
    row: TrackingRow

    @property
    def key(self) -> str:
        """What names it among all campaigns."""
        return f"{self.state.campaign_id}/{self.state.number}/{self.tracker}"


def pause_s(tries: int) -> float:
    """Return how long to wait after so many failures in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16), MAX_PAUSE_S)


class Outbox:
    """What is to be told, of all campaigns of a server."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def due(self) -> list[Untold]:
        """Return what is to be told now."""
        now = self._core.clock.wall()

        def operation(connection: Connection) -> list[Untold]:
            unreadable.clear()
            found = []
            for row in tracking_outbox.untold(connection, now, limit=_AT_ONCE):
                try:
                    found.append(_untold(connection, row))
                except Unreadable as error:
                    unreadable.append((row, str(error)))
            return [each for each in found if each is not None]

        unreadable: list[tuple[TrackingRow, str]] = []
        found = await self._core.read(operation)
        for row, why in unreadable:
            await self._put_off(row, why)
        return found

    async def next_at(self) -> float | None:
        """Return when something is to be told that is not to be told yet, in Unix time; null if there is nothing."""
        now = self._core.clock.wall()
        return await self._core.read(lambda connection: tracking_outbox.next_at(connection, now))

    async def waits(self) -> bool:
        """Say whether anything is yet to be told, now or later."""
        return await self._core.read(tracking_outbox.any_untold)

    async def told(self, untold: Untold, place: str) -> None:
        """Store that a tracker has taken a cycle."""
        text = scrub(place)[:MAX_TEXT]

        def operation(connection: Connection) -> None:
            now = self._core.clock.wall()
            if tracking_outbox.change(connection, untold.row, {"told_at": now, "place": text, "error": None}):
                _say(connection, untold.row, "info", f"{untold.tracker} has the cycle: {text}", now)

        await self._core.write(operation)

    async def failed(self, untold: Untold, why: str) -> float:
        """Store that a tracker has not taken a cycle, and return in how many seconds it is told again."""
        return await self._put_off(untold.row, why)

    async def _put_off(self, row: TrackingRow, why: str) -> float:
        text, tries = scrub(why)[:MAX_TEXT], row.tries + 1
        again_s = pause_s(tries)

        def operation(connection: Connection) -> None:
            now = self._core.clock.wall()
            changes = {"tries": tries, "not_before": now + again_s, "error": text}
            changed = tracking_outbox.change(connection, row, changes)
            if changed and (tries == 1 or tries % _SAID_EVERY == 0 or text != row.error):
                more = f"{text} It is told again in {again_s:,.0f} s; the campaign goes on."
                _say(connection, row, "warning", f"{row.tracker} is not told of the cycle: {more}", now)

        await self._core.write(operation)
        return again_s

    async def drop(self, untold: Untold) -> None:
        """Forget what a campaign does not want to be told any more."""

        def operation(connection: Connection) -> None:
            now = self._core.clock.wall()
            tracking_outbox.forget(connection, untold.row)
            _say(connection, untold.row, "info", f"{untold.tracker} is not told of the cycle any more", now)

        await self._core.write(operation)


def _untold(connection: Connection, row: TrackingRow) -> Untold | None:
    campaign = campaigns.by_seq(connection, row.campaign_seq)
    cycle = cycle_rows.get(connection, row.campaign_seq, row.cycle)
    assert campaign is not None, "campaigns are never removed"
    assert cycle is not None, "nor are their cycles"
    state = cycles.state_of(connection, campaign, cycle)
    if StepName.RECORD not in state.outcomes:
        return None  # its model is merged again; it is entered anew once that is recorded
    # What was misspelt when the cycle opened is mended for what could not be told, too.
    now = parsed(campaign.spec)
    spec = state.spec.model_copy(update={"wandb_project": now.wandb_project, "tracking": now.tracking})
    cost = spend.of_cycles(connection, row.campaign_seq).get(row.cycle, 0.0)
    return Untold(replace(state, spec=spec), row.tracker, row.revision, row.recorded_at, cost, row)


def _say(connection: Connection, row: TrackingRow, level: str, text: str, now: float) -> None:
    campaigns.add(connection, LineRow(row.campaign_seq, row.cycle, None, level, text, now))
    campaign = campaigns.by_seq(connection, row.campaign_seq)
    if campaign is not None:
        wake(connection, topic(campaign.id))
