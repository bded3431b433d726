"""What a look at a provider's task leads to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.campaign.contract import CycleFailed, Later, Progress, StepFailed
from tunefleet.campaign.steps.wait import WaitStep
from tunefleet.settings import CampaignSettings
from tunefleet.spec.campaign import CampaignBudgetSpec

NOW = 1_000_000.0


def context(found: Progress, **submitted: Any) -> Any:
    async def look(_: str) -> Progress:
        return found

    provider = SimpleNamespace(name="gradients", look=look, fetches_from_store=False)
    return SimpleNamespace(
        provider=provider,
        clock=SimpleNamespace(wall=lambda: NOW),
        settings=CampaignSettings(),
        spec=SimpleNamespace(budget=CampaignBudgetSpec()),
        outcome=lambda _: {"key": "camp-1/0", **submitted},
    )


async def test_a_task_that_names_no_model_is_asked_again_and_never_ordered_again() -> None:
    with pytest.raises(StepFailed, match="names no model") as raised:
        await WaitStep().act(context(Progress("succeeded", "success")), {"ticket": "t"})
    assert not isinstance(raised.value, CycleFailed), "the next cycle would order it anew"
    with pytest.raises(CycleFailed, match="has failed: failure"):
        await WaitStep().act(context(Progress("failed", "failure")), {"ticket": "t"})


@pytest.mark.parametrize(("until", "late"), [(NOW + 1, False), (NOW - 1, True), (None, False)])
async def test_it_is_said_when_the_links_of_a_task_have_ended(until: float | None, late: bool) -> None:
    found = await WaitStep().act(context(Progress("running", "pending"), links_until=until), {"ticket": "t"})
    assert isinstance(found, Later)
    assert ("the links to its rows have ended" in found.why) is late
