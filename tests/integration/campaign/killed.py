"""A process that runs a campaign's engine on a real store until it is killed, at a point that it is given, or is done.

Only the engine, the book and the steps that order, wait and sleep are real here: such a life takes a part of a second,
where one of a whole server takes several.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.fakes import billed_package
from tests.unit.campaign.played import Counted, Crashing
from tests.unit.campaign.service.desk import ADA, spec
from tunefleet.campaign.contract import Order
from tunefleet.campaign.engine import Engine
from tunefleet.campaign.service import service
from tunefleet.campaign.steps.sleep import SleepStep
from tunefleet.campaign.steps.submit import SubmitStep
from tunefleet.campaign.steps.wait import WaitStep
from tunefleet.client import AsyncClient
from tunefleet.db.campaigns import campaigns
from tunefleet.lifecycle.cycle import STEPS
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.context import ServerContext
from tunefleet.settings import CampaignSettings, ServerSettings

INTERVAL_S = 0.3


def opened(data: Path) -> ServerContext:
    return open_context(ServerSettings(data=data, synchronous="NORMAL"))


def live(data: Path, url: str, name: str, cycles: int, at: int | str | None) -> None:
    """Go on with a campaign until so many cycles are over.

    Args:
        data: Of the server.
        url: Of the provider.
        name: Of the campaign; made if there is none.
        cycles: After which it is done.
        at: At which point it dies by its own hand, as if by another's: its number, or what it is called; null: at none.
    """
    os.environ[billed_package.ADDRESS] = url
    seen = 0

    def crash(where: str) -> None:
        nonlocal seen
        if at in {seen, where}:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    class Provider(billed_package.Billed):
        async def submit(self, order: Order) -> str:
            crash("before billing")
            ticket = await super().submit(order)
            crash("after billing")
            return ticket

    core = opened(data)
    repository = Crashing(SimpleNamespace(core=core), crash)  # type: ignore[arg-type]
    counted: dict[Any, Any] = {each: Counted(each, []) for each in STEPS}
    engine = Engine(
        repository,
        CampaignSettings(),
        lambda token: AsyncClient("http://127.0.0.1:9", token),
        find_provider=lambda _: lambda _settings, _client: Provider(),
        steps={**counted, **{step.name: step for step in (SubmitStep(), WaitStep(), SleepStep())}},
    )
    asyncio.run(_run(core, repository, engine, name, cycles))


async def _run(core: ServerContext, repository: Crashing, engine: Engine, name: str, cycles: int) -> None:
    hours = INTERVAL_S / 3600
    wanted = spec(
        run_intervals={"min_hours": hours, "max_hours": hours}, budget={"cost_per_task": 2.0, "cost_per_second": 0.5}
    )
    (campaign,) = await service.apply(core, ADA, {name: wanted}, start=False)
    await repository.begin()
    while True:
        worked = await engine.advance(campaign.id)
        row = await core.read(lambda connection: campaigns.by_id(connection, campaign.id))
        assert row is not None
        if row.cycles > cycles:
            return
        if not worked:
            await asyncio.sleep(0.01)
