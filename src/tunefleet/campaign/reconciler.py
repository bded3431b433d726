"""Looks after all campaigns of a server: one asyncio task for each that has something to do.

A campaign that fails, waits or hangs holds up no other: each has its own task, its own lease and its own client.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import defaultdict
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from tunefleet.campaign import scratch_folder
from tunefleet.campaign.engine import Engine
from tunefleet.campaign.report import run_of
from tunefleet.client import AsyncClient
from tunefleet.errors import TunefleetError
from tunefleet.integrations.trackers import catalog, delivery
from tunefleet.orchestrator.campaigns.engine_repository import TOPIC, Book
from tunefleet.orchestrator.campaigns.tracking_outbox import Outbox, Untold
from tunefleet.orchestrator.context import Core
from tunefleet.settings import CampaignSettings, TrackingSettings, load

log = logging.getLogger(__name__)

# What is due is looked for when something changes; this often even if nothing does.
LOOK_S: Final = 30.0
FAULT_PAUSE_S: Final = 5.0
# After a campaign that seemed to want something, and did not.
IDLE_PAUSE_S: Final = 1.0


class CampaignKeeper:
    """Runs what is due of the campaigns of a server."""

    def __init__(self, core: Core, url: str, trust: ssl.SSLContext | None = None) -> None:
        self._core = core
        self._book = Book(core)
        self._engine = Engine(
            self._book, load(CampaignSettings), lambda token: AsyncClient(url, token, trust=trust), clock=core.clock
        )
        self._reporter = Reporter(Outbox(core), load(TrackingSettings), core.settings.data_dir / "tracking")
        self._work: dict[str, asyncio.Task[None]] = {}
        self._begun = False
        self._seen = core.clock.wall()

    async def run_once(self) -> None:
        """Start what is due, then wait until something else may be."""
        if not self._begun:
            await scratch_folder.clear(self._book.folder)
            await self._book.begin()
            self._begun = True
        signals = self._core.signals
        seen = signals.version(TOPIC)
        await signals.wait(TOPIC, await self.start_due(), seen)

    async def start_due(self) -> float:
        """Start to work on every campaign that may want something, and that nobody here works on.

        Returns:
            In how many seconds to look again, unless something changes before.
        """
        now = self._core.clock.wall()
        await self._book.look_at_clock(self._seen)
        self._seen = now
        due = await self._book.due()
        for campaign_id, at in due.items():
            if at <= now:
                self._start(campaign_id, self._engine.advance(campaign_id))
        for state in await self._book.to_cancel():
            self._start(f"{state.campaign_id}/{state.number}", self._engine.end_order(state))
        for untold in await self._reporter.due():
            self._start(untold.key, self._reporter.tell(untold))
        untold_at = await self._reporter.next_at()
        later = [*due.values(), *([] if untold_at is None else [untold_at])]
        return min([LOOK_S, *(at - now for at in later if at > now)])

    async def close(self) -> None:
        """Stop, and let somebody else have what is not done."""
        for task in self._work.values():
            task.cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)

    def _start(self, key: str, work: Coroutine[Any, Any, bool]) -> None:
        if key in self._work:
            work.close()
            return
        self._work[key] = asyncio.create_task(self._attend(key, work), name=f"campaign {key}")

    async def _attend(self, key: str, work: Coroutine[Any, Any, bool]) -> None:
        try:
            if not await work:
                await asyncio.sleep(IDLE_PAUSE_S)
        except TunefleetError as error:
            log.warning("The campaign %s is left to a later look: %s", key, error)
            await asyncio.sleep(FAULT_PAUSE_S)
        except Exception:
            log.exception("The campaign %s is left to a later look.", key)
            await asyncio.sleep(FAULT_PAUSE_S)
        finally:
            self._work.pop(key, None)
            self._core.signals.notify(TOPIC)


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
