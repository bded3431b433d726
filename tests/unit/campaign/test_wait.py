"""What a look at a provider's task leads to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.campaign.contract import CycleFailed, Later, Progress, StepFailed
from tunefleet.campaign.steps.wait import WaitStep
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignBudgetSpec

NOW = 1_000_000.0


def context(found: Progress, **submitted: Any) -> Any:
    async def look(_: str) -> Progress:
        return found

    provider = SimpleNamespace(name="gradients", look=look, fetches_from_store=False)
    return SimpleNamespace(
        state=SimpleNamespace(name="daily"),
        provider=provider,
        clock=SimpleNamespace(wall=lambda: NOW),
        settings=CampaignSettings(),
        spec=SimpleNamespace(budget=CampaignBudgetSpec(), hours_to_complete=8.0),
        outcome=lambda _: {"key": "camp-1/0", **submitted},
    )


async def test_a_task_that_names_no_model_is_asked_again_and_never_ordered_again() -> None:
    with pytest.raises(StepFailed, match="lists no model") as raised:
        await WaitStep().act(context(Progress("succeeded", "success")), {"ticket": "t"})
    assert not isinstance(raised.value, CycleFailed), "the next cycle would order it anew"
    with pytest.raises(CycleFailed, match="has failed: failure"):
        await WaitStep().act(context(Progress("failed", "failure")), {"ticket": "t"})


@pytest.mark.parametrize(("until", "late"), [(NOW + 1, False), (NOW - 1, True), (None, False)])
async def test_it_is_said_when_the_links_of_a_task_have_ended(until: float | None, late: bool) -> None:
    found = await WaitStep().act(context(Progress("running", "pending"), links_until=until), {"ticket": "t"})
    assert isinstance(found, Later)
    assert ("the links to its rows have expired" in found.why) is late
    assert ("`tunefleet campaign stop daily` ends it" in found.why) is late


@pytest.mark.parametrize(("hours_ago", "waits"), [(1.0, True), (31.9, True), (32.1, False)])
async def test_a_task_that_does_not_end_is_left_to_a_person(hours_ago: float, waits: bool) -> None:
    asked = context(Progress("running", "a_status_of_tomorrow"), placed_at=NOW - hours_ago * 3600)
    if waits:
        assert isinstance(await WaitStep().act(asked, {"ticket": "t"}), Later)
        return
    with pytest.raises(StepFailed, match=r"more than a day overdue: a_status_of_tomorrow\.") as raised:
        await WaitStep().act(asked, {"ticket": "t"})
    assert not isinstance(raised.value, CycleFailed), "nothing is ordered in its place"
