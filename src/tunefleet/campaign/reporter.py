"""Tells trackers of cycles, beside the campaigns: what is not taken is told again, and no campaign waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from pathlib import Path

from tunefleet.campaign.report import run_of
from tunefleet.errors import TunefleetError
from tunefleet.integrations.trackers import catalog, delivery
from tunefleet.orchestrator.campaigns.tracking_outbox import Outbox, Untold
from tunefleet.settings import TrackingSettings

log = logging.getLogger(__name__)


class Reporter:
    """Tells trackers what waits in the outbox."""

    def __init__(self, outbox: Outbox, settings: TrackingSettings, folder: Path) -> None:
        self._outbox = outbox
        self._settings = settings
        self._folder = folder
        # One child a tracker: a slow one holds up no other, and many cycles that wait do not start as many processes.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def due(self) -> list[Untold]:
        """Return what is to be told now."""
        return await self._outbox.due()

    async def next_at(self) -> float | None:
        """Return when something is to be told that is not to be told yet, in Unix time."""
        return await self._outbox.next_at()

    async def tell(self, untold: Untold) -> bool:
        """Tell a tracker of a cycle, and store what came of it."""
        name, spec = untold.tracker, untold.state.spec
        if name not in catalog.chosen(spec, self._settings).names:
            await self._outbox.drop(untold)
            return True
        async with self._turns[name]:
            try:
                place = await delivery.post(name, run_of(untold), self._folder, self._settings)
            except TunefleetError as error:
                log.warning("[%s] cycle %d: %s", untold.state.name, untold.state.number, error)
                await self._outbox.failed(untold, str(error))
                return True
            except Exception as error:
                log.exception("[%s] cycle %d cannot be told.", untold.state.name, untold.state.number)
                await self._outbox.failed(untold, f"The server has a fault ({type(error).__name__}).")
                return True
        await self._outbox.told(untold, place)
        return True
