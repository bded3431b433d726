"""How far a step is: shown while it works, gone when it is done or has failed, and nobody else's to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.campaign.service.desk import another, made, reached, taken
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.service import service, step_progress
from tunefleet.campaign.service.engine_repository import LEASE_S, CampaignRepository
from tunefleet.campaign.service.step_progress import Activity
from tunefleet.lifecycle.cycle import StepName
from tunefleet.schemas.campaign import ActivityView

HALF = Activity("merging", 40, 80, "MiB", "task-1")


@pytest.fixture
def repository(lab: Lab) -> CampaignRepository:
    return CampaignRepository(lab.core)


async def shown(lab: Lab, id_: str) -> ActivityView | None:
    cycle = (await service.get(lab.core, lab.admin, id_)).cycle
    assert cycle is not None
    return cycle.activity


async def test_what_a_step_says_is_shown_until_it_is_done(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.MERGE)
    assert await shown(lab, id_) is None
    await repository.report(state, HALF)
    found = await shown(lab, id_)
    assert found is not None
    assert (found.what, found.done, found.total, found.unit, found.of) == ("merging", 40, 80, "MiB", "task-1")
    assert found.at.timestamp() == pytest.approx(lab.clock.wall)
    assert (await service.get(lab.core, lab.admin, id_)).cycle_list[0].activity == found
    await repository.done(state, {})
    assert await shown(lab, id_) is None


async def test_a_step_that_failed_works_on_nothing(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.MERGE)
    await repository.report(state, HALF)
    await repository.failed(state, "out of memory", fatal=False)
    assert await shown(lab, id_) is None


async def test_a_step_that_waits_may_be_worked_on_elsewhere(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.WAIT)
    await repository.report(state, Activity("training", 3, 8, "steps"))
    await repository.later(state, lab.clock.wall + 1, "task-1 is running")
    found = await shown(lab, id_)
    assert found is not None
    assert found.done == 3


async def test_who_lost_the_lease_or_is_behind_says_nothing(
    lab: Lab, repository: CampaignRepository, tmp_path: Path
) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.MERGE)
    await repository.done(state, {})
    await repository.report(state, HALF)
    assert await shown(lab, id_) is None, "the cycle is at its gate"
    lab.clock.advance(LEASE_S)
    async with another(lab, tmp_path / "other") as core:
        await taken(CampaignRepository(core), id_, "two")
        await repository.report(state, HALF)
    assert await shown(lab, id_) is None


async def test_what_all_running_cycles_do_is_told_once_and_again_when_it_changes(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.MERGE)
    first = await step_progress.running_activity(lab.core, lab.admin, {})
    assert [(each.campaign_id, each.cycle, each.step, each.activity) for each in first.values()] == [
        (id_, 0, StepName.MERGE, None)
    ]
    again = await step_progress.running_activity(lab.core, lab.admin, first)
    assert again[id_, 0] is first[id_, 0]
    await repository.report(state, HALF)
    further = await step_progress.running_activity(lab.core, lab.admin, first)
    assert further[id_, 0].activity == await shown(lab, id_)
    await repository.log(state, "info", "half of it is merged")
    assert (await step_progress.running_activity(lab.core, lab.admin, further))[id_, 0].line > further[id_, 0].line
