"""Who is told what of a campaign."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.receiver import Receiver
from tests.integration.notify.told import deliver
from tests.unit.campaign.service.desk import HOUR, reached, spec, taken
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.service import service
from tunefleet.campaign.service.cycle_state import BudgetError, NewVersion
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.lifecycle.cycle import Stage, StepName
from tunefleet.orchestrator.notifications import channels
from tunefleet.schemas.notify import ChannelCreate


async def campaign(lab: Lab, **more: Any) -> tuple[CampaignRepository, str]:
    (applied,) = await service.apply(lab.core, lab.admin, {"daily": spec(**more)})
    return CampaignRepository(lab.core), applied.id


async def told(lab: Lab, receiver: Receiver) -> list[dict[str, Any]]:
    await deliver(lab)
    return [json.loads(seen.body) for seen in receiver.seen]


async def test_a_promoted_model_is_told(lab: Lab, receiver: Receiver) -> None:
    await channels.create(lab.core, lab.admin, ChannelCreate(name="team", to=receiver.url))
    repository, id_ = await campaign(lab)
    state = await reached(repository, id_, StepName.RECORD)
    await repository.register(state, NewVersion(Stage.PROMOTED, "model", {}, reason="It is better by 0.1."))
    await repository.register(state, NewVersion(Stage.PROMOTED, "model", {}, reason="It is better by 0.1."))
    (said,) = await told(lab, receiver)
    assert (said["event"], said["title"]) == ("promoted", "daily: version 1 is promoted")
    assert said["text"] == "Version 1 of model daily is promoted: It is better by 0.1."
    assert said["campaign"] == {
        "id": id_, "name": "daily", "owner": "admin", "cycle": 0, "step": None, "version": 1,
    }  # fmt: skip
    assert (said["task"], said["command"]) == (None, "tunefleet models show daily 1")
    assert said["url"] == f"https://fleet.example.org/api/v1/campaigns/{id_}"


async def test_a_failed_cycle_is_told_once_and_a_held_campaign_with_the_way_out(lab: Lab, receiver: Receiver) -> None:
    await channels.create(lab.core, lab.admin, ChannelCreate(name="team", to=receiver.url))
    repository, id_ = await campaign(lab, budget={"max_failures": 2})
    await repository.failed(await taken(repository, id_), "prep_task_failure", fatal=True)
    lab.clock.advance(100)
    await repository.failed(await taken(repository, id_), "prep_task_failure", fatal=True)
    first, second = await told(lab, receiver)
    assert (first["event"], second["event"]) == ("failed", "failed")
    assert first["title"] == "daily: cycle 0 failed"
    assert first["text"].startswith("Cycle 0 of campaign daily failed in its step data: prep_task_failure.")
    assert second["title"] == "daily is held"
    assert "2 cycles failed in a row." in second["text"]
    assert second["command"] == "tunefleet campaign retry daily"


async def test_a_spent_budget_is_told_as_that_and_not_as_a_failure(lab: Lab, receiver: Receiver) -> None:
    await channels.create(lab.core, lab.admin, ChannelCreate(name="team", to=receiver.url))
    repository, id_ = await campaign(lab)
    await repository.over_budget(await taken(repository, id_), BudgetError("10 are spent, and max_cost is 10."))
    (said,) = await told(lab, receiver)
    assert (said["event"], said["title"]) == ("budget", "daily has reached its budget")
    assert "10 are spent, and max_cost is 10." in said["text"]


async def test_a_task_that_cannot_be_cancelled_is_told_once_for_many_tries(lab: Lab, receiver: Receiver) -> None:
    await channels.create(lab.core, lab.admin, ChannelCreate(name="team", to=receiver.url))
    repository, id_ = await campaign(lab)
    await reached(repository, id_, StepName.WAIT)
    await service.stop(lab.core, lab.admin, id_)
    for _ in range(9):
        lab.clock.advance(3 * HOUR)
        (left,) = await repository.to_cancel()
        await repository.not_cancelled(left, "Gradients answers 500.")
    (said,) = await told(lab, receiver)
    assert (said["event"], said["title"]) == ("failed", "daily: a task could not be cancelled")
    assert "The task of cycle 0 of campaign daily could not be cancelled, and may still cost money" in said["text"]
    assert "Gradients answers 500." in said["text"]
    shown = await service.get(lab.core, lab.admin, id_)
    assert "could not be cancelled" in (shown.cycle_list[0].waiting or "")
    (left,) = await repository.to_cancel() or [left]
    await repository.cancelled(left)
    assert (await service.get(lab.core, lab.admin, id_)).cycle_list[0].waiting is None


async def test_what_the_document_of_a_campaign_wants_is_told_and_nothing_else(lab: Lab, receiver: Receiver) -> None:
    repository, id_ = await campaign(lab, notify=[{"to": receiver.url, "on": ["budget"]}])
    await repository.failed(await taken(repository, id_), "x", fatal=True)
    lab.clock.advance(100)
    await repository.over_budget(await taken(repository, id_), BudgetError("Spent."))
    assert [said["event"] for said in await told(lab, receiver)] == ["budget"]


async def test_a_retry_by_itself_and_a_refused_model_are_told_to_nobody(lab: Lab, receiver: Receiver) -> None:
    await channels.create(lab.core, lab.admin, ChannelCreate(name="team", to=receiver.url))
    repository, id_ = await campaign(lab)
    await repository.failed(await taken(repository, id_), "The network.", fatal=False)
    lab.clock.advance(100)
    state = await reached(repository, id_, StepName.RECORD)
    await repository.register(state, NewVersion(Stage.ARCHIVED, "model", {}))
    assert await told(lab, receiver) == []
