"""Reconciler of all campaigns of a server: one asyncio task for each campaign that is due.

A campaign that fails, waits or hangs blocks no other: each has its own task, lease and client.
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
from tunefleet.campaign.service.engine_repository import TOPIC, CampaignRepository
from tunefleet.campaign.service.tracking_outbox import PendingDelivery, TrackingOutbox
from tunefleet.client import AsyncClient
from tunefleet.errors import TunefleetError
from tunefleet.integrations.trackers import catalog, delivery
from tunefleet.orchestrator.context import ServerContext
from tunefleet.settings import CampaignSettings, TrackingSettings, load

log = logging.getLogger(__name__)

# Due campaigns are looked for whenever something changes, and this often otherwise.
LOOK_S: Final = 30.0
FAULT_PAUSE_S: Final = 5.0
# Pause after a campaign that was due but could not be claimed, so that the loop does not spin.
IDLE_PAUSE_S: Final = 1.0


class CampaignReconciler:
    """Runs the due campaigns of a server."""

    def __init__(self, core: ServerContext, url: str, trust: ssl.SSLContext | None = None) -> None:
        self._core = core
        self._repository = CampaignRepository(core)
        self._engine = Engine(
            self._repository,
            load(CampaignSettings),
            lambda token: AsyncClient(url, token, trust=trust),
            clock=core.clock,
        )
        self._reporter = Reporter(TrackingOutbox(core), load(TrackingSettings), core.settings.data_dir / "tracking")
        self._work: dict[str, asyncio.Task[None]] = {}
        self._begun = False
        self._seen = core.clock.wall()

    async def run_once(self) -> None:
        """Start due campaigns, then wait until another one may be due."""
        if not self._begun:
            await scratch_folder.clear(self._repository.folder)
            await self._repository.begin()
            self._begun = True
        signals = self._core.signals
        seen = signals.version(TOPIC)
        await signals.wait(TOPIC, await self.start_due(), seen)

    async def start_due(self) -> float:
        """Start a task for every due campaign that has none.

        Returns:
            Seconds until the next campaign is due.
        """
        now = self._core.clock.wall()
        await self._repository.look_at_clock(self._seen)
        self._seen = now
        due = await self._repository.due()
        for campaign_id, at in due.items():
            if at <= now:
                self._start(campaign_id, self._engine.advance(campaign_id))
        for state in await self._repository.to_cancel():
            self._start(f"{state.campaign_id}/{state.number}", self._engine.end_order(state))
        for untold in await self._reporter.due():
            self._start(untold.key, self._reporter.tell(untold))
        untold_at = await self._reporter.next_at()
        later = [*due.values(), *([] if untold_at is None else [untold_at])]
        return min([LOOK_S, *(at - now for at in later if at > now)])

    async def close(self) -> None:
        """Stop, and release unfinished campaigns to other servers."""
        for task in self._work.values():
            task.cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)

    def _start(self, key: str, work: Coroutine[Any, Any, bool]) -> None:
        if key in self._work:
            work.close()
            return
        self._work[key] = asyncio.create_task(self._run(key, work), name=f"campaign {key}")

    async def _run(self, key: str, work: Coroutine[Any, Any, bool]) -> None:
        try:
            if not await work:
                await asyncio.sleep(IDLE_PAUSE_S)
        except TunefleetError as error:
            log.warning("Campaign %s failed; retrying later: %s", key, error)
            await asyncio.sleep(FAULT_PAUSE_S)
        except Exception:
            log.exception("Campaign %s failed unexpectedly; retrying later.", key)
            await asyncio.sleep(FAULT_PAUSE_S)
        finally:
            self._work.pop(key, None)
            self._core.signals.notify(TOPIC)


class Reporter:
    """Delivers the outbox to experiment trackers."""

    def __init__(self, outbox: TrackingOutbox, settings: TrackingSettings, folder: Path) -> None:
        self._outbox = outbox
        self._settings = settings
        self._folder = folder
        # One subprocess per tracker: a slow tracker blocks no other, and many pending cycles do not start many
        # processes.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def due(self) -> list[PendingDelivery]:
        """Return the deliveries that are due now."""
        return await self._outbox.due()

    async def next_at(self) -> float | None:
        """Return the Unix time when the next delivery is due that is not due yet."""
        return await self._outbox.next_at()

    async def tell(self, untold: PendingDelivery) -> bool:
        """Deliver a cycle to its tracker, and record the result."""
        name, spec = untold.tracker, untold.state.spec
        if name not in catalog.chosen(spec, self._settings).names:
            await self._outbox.drop(untold)
            return True
        async with self._locks[name]:
            try:
                location = await delivery.post(name, run_of(untold), self._folder, self._settings)
            except TunefleetError as error:
                log.warning("[%s] cycle %d: %s", untold.state.name, untold.state.number, error)
                await self._outbox.failed(untold, str(error))
                return True
            except Exception as error:
                log.exception("[%s] cycle %d: tracker delivery crashed.", untold.state.name, untold.state.number)
                await self._outbox.failed(untold, f"Internal server error ({type(error).__name__}).")
                return True
        await self._outbox.delivered(untold, location)
        return True
