"""Every wait of a campaign has a line in its log: what for and how long, once for each reason; or what to type."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.campaign.service.desk import ADA, HOUR, made, reached, taken
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.service import history, service
from tunefleet.campaign.service.cycle_state import BudgetError
from tunefleet.campaign.service.engine_repository import LEASE_S, CampaignRepository
from tunefleet.campaign.service.status import same_reason
from tunefleet.lifecycle.cycle import StepName
from tunefleet.orchestrator.notifications.messages import campaign_text, spell_until

RETRY = "Action required: `tunefleet campaign retry daily`."
STEP = "The step data of cycle 0"
START = "Action required: correct the campaign's file, then `tunefleet campaign start daily`."


class Even(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@pytest.fixture
def repository(lab: Lab) -> CampaignRepository:
    return CampaignRepository(lab.core, jitter=Even())


async def lines(lab: Lab, id_: str) -> list[str]:
    return [each.text for each in (await history.read_log(lab.core, ADA, id_)).lines]


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (["pending", "pending", "training"], ["pending", "training"]),
        (["step 1 of 8", "step 2 of 8"], ["step 1 of 8"]),
        (
            ["pending", "the provider does not respond", "pending"],
            ["pending", "the provider does not respond", "pending"],
        ),
    ],
)
async def test_a_wait_is_logged_once_for_each_reason(
    lab: Lab, repository: CampaignRepository, caplog: pytest.LogCaptureFixture, reasons: list[str], said: list[str]
) -> None:
    caplog.set_level("INFO")
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.WAIT)
    for why in reasons:
        await repository.later(state, lab.clock.wall + 600, why)
        lab.clock.advance(600)
        state = await taken(repository, id_)
    expected = [f"waiting: {why}; next check in 10m, until 2027-01-15" for why in said]
    found = await lines(lab, id_)
    assert [line.rsplit(" ", 2)[0] for line in found] == expected
    assert [line for line in found if f"[daily] cycle 0, wait: {line}" in caplog.text] == found


@pytest.mark.parametrize(
    ("most", "options", "said"),
    [
        (3, {"fatal": False}, "x Failure 1 of 3; retrying in 1m."),
        (3, {"fatal": True}, "x The next cycle opens in 1m."),
        (1, {"fatal": False}, f"The campaign is held. {RETRY} {STEP} failed 1 times in a row: x"),
        (1, {"fatal": True}, f"The campaign is held. {RETRY} 1 cycles failed in a row. {STEP} failed: x"),
        (3, {"fatal": True, "hold": True}, f"The campaign is held. {START} x"),
    ],
)
async def test_a_failure_is_logged_with_what_comes_next_and_when(
    lab: Lab, repository: CampaignRepository, most: int, options: dict[str, Any], said: str
) -> None:
    id_ = await made(lab, budget={"max_failures": most})
    await repository.failed(await taken(repository, id_), "x", **options)
    assert await lines(lab, id_) == [said]
    shown = await service.get(lab.core, ADA, id_)
    held = said.removeprefix("The campaign is held. ")
    assert (shown.status == "held", shown.reason) == (held != said, held if held != said else None)
    news = [each for each in await history.events_after(lab.core, ADA, id_, 0) if each.kind == "campaign.held"]
    assert [each.data["reason"] for each in news] == ([] if shown.reason is None else [held])


async def test_a_command_that_an_error_names_stays_in_front(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab, budget={"max_failures": 1})
    error = "Action required: `tunefleet campaign retry daily --from upload`. The task is gone."
    await repository.failed(await taken(repository, id_), error, fatal=False)
    reason = (await service.get(lab.core, ADA, id_)).reason
    assert reason == f"{error} The step data of cycle 0 failed 1 times in a row."


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ({"until": HOUR}, "Enough. Next check in 1h, until 2027-01-15 09:00 UTC."),
        ({"hint": "Raise max_cost."}, f"The campaign is held. {START} Enough. Raise max_cost."),
        ({"verb": "retry"}, f"The campaign is held. {RETRY} Enough."),
    ],
)
async def test_a_budget_says_until_when_it_waits_or_what_to_type(
    lab: Lab, repository: CampaignRepository, error: dict[str, Any], said: str
) -> None:
    id_ = await made(lab)
    given = {**error, "until": lab.clock.wall + error["until"]} if "until" in error else error
    await repository.over_budget(await taken(repository, id_), BudgetError("Enough.", **given))
    assert await lines(lab, id_) == [said]


async def test_a_task_that_cannot_be_cancelled_says_when_that_is_tried_again(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    await reached(repository, id_, StepName.WAIT)
    await service.stop(lab.core, ADA, id_)
    lab.clock.advance(LEASE_S)
    (left,) = await repository.to_cancel()
    await repository.not_cancelled(left, "It does not respond.")
    assert (await lines(lab, id_))[-1].endswith("It does not respond. Retrying in 1m.")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("queued", "queued", True),
        ("again in 57 s", "again in 9 s", True),
        ("1,000 of 2.5 rows", "2,000 of 7 rows", True),
        ("task-a1 is queued", "task-b1 is queued", False),
        ("queued", "running", False),
        (None, "queued", False),
    ],
)
def test_a_reason_that_only_counts_on_is_the_same(one: str | None, other: str, same: bool) -> None:
    assert same_reason(one, other) is same


@pytest.mark.parametrize(
    ("left_s", "said"),
    [
        (0.4, "0.4s"),
        (119, "1m 59s"),
        (600, "10m, until 2027-01-15 08:10 UTC"),
        (7500, "2h 5m, until 2027-01-15 10:05 UTC"),
    ],
)
def test_a_longer_wait_has_its_end_too(left_s: float, said: str) -> None:
    assert spell_until(1_800_000_000.0 + left_s, 1_800_000_000.0) == said


@pytest.mark.parametrize(
    ("kind", "data", "command"),
    [
        ("campaign.held", {"reason": f"{START} x"}, "tunefleet campaign start daily"),
        ("campaign.held", {"reason": f"{RETRY} Type `this` later."}, "tunefleet campaign retry daily"),
        ("campaign.held", {"reason": "An older server has held it."}, "tunefleet campaign retry daily"),
        ("campaign.budget", {"error": f"{START} x"}, "tunefleet campaign start daily"),
        ("campaign.budget", {"error": "Enough for today."}, "tunefleet campaign show daily"),
    ],
)
def test_a_notification_has_the_command_to_type(kind: str, data: dict[str, str], command: str) -> None:
    assert campaign_text(kind, "daily", data)[2] == command
