"""A book on the lab's store, and somebody who goes through the steps of a cycle as the engine does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.unit.orchestrator.lab import Lab
from tunefleet.artifacts import FolderStore
from tunefleet.campaign.service import service
from tunefleet.campaign.service.cycle_state import CycleState
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.db import Database
from tunefleet.lifecycle.cycle import StepName
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import Clock, ServerContext
from tunefleet.orchestrator.pubsub import PubSub
from tunefleet.settings import ServerSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec

ADA: Final = Actor("key-ada", "ada", "member")
BOB: Final = Actor("key-bob", "bob", "member")
HOUR: Final = 3600.0


def spec(**more: Any) -> CampaignSpec:
    dataset = {"name": "org/rows", "field_instruction": "question", "field_output": "answer"}
    given = {"enabled": True, "model_repo": "org/model", "provider": "local", "datasets": [dataset], **more}
    return CampaignSpec.model_validate(given)


async def made(lab: Lab, name: str = "daily", *, actor: Actor = ADA, start: bool = False, **more: Any) -> str:
    """Make or change a campaign, and return its id."""
    (applied,) = await service.apply(lab.core, actor, {name: spec(**more)}, start=start)
    return applied.id


async def taken(repository: CampaignRepository, id_: str, holder: str = "one") -> CycleState:
    state = await repository.take(id_, holder)
    assert state is not None, "nothing is due"
    return state


async def go(
    repository: CampaignRepository, state: CycleState, *, to: StepName | None, **outcomes: Mapping[str, Any]
) -> CycleState | None:
    """Go through the steps up to one, which is not begun; through all of them if it is null."""
    at: CycleState | None = state
    while at is not None and at.step != to:
        at = await repository.intend(at, {"what": at.step.value}) if at.intent is None else at
        default = {"next_at": 0.0} if at.step is StepName.SLEEP else {"of": at.step.value}
        at = await repository.done(at, outcomes.get(at.step.value, default))
    return at


async def reached(repository: CampaignRepository, id_: str, step: StepName, holder: str = "one") -> CycleState:
    """Take a campaign and go through its cycle up to a step."""
    state = await go(repository, await taken(repository, id_, holder), to=step)
    assert state is not None
    return state


@asynccontextmanager
async def another(lab: Lab, folder: Path) -> AsyncIterator[ServerContext]:
    """A second service on the lab's database, as another process has it, or the same one after a crash."""
    signals = PubSub()
    database = Database.open(
        lab.core.settings.data_dir / "tunefleet.db",
        synchronous="NORMAL",
        on_wake=lambda topics: signals.notify(*topics),
    )
    clock = Clock(lambda: lab.clock.wall, lambda: lab.clock.monotonic)
    blobs = FolderStore(lab.core.settings.data_dir / "artifacts")
    try:
        yield ServerContext(ServerSettings(data=folder), database, blobs, signals, lab.core.secret, clock)
    finally:
        signals.close()
        database.close()
