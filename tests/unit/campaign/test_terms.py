"""What is looked at before a task is paid for, and where models go."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from tunefleet.campaign import paid_training_checks, publish_targets
from tunefleet.campaign.contract import Base, CycleFailed, Misconfigured, StepFailed
from tunefleet.errors import ConflictError
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec

KEYED = CampaignSettings(hf_username="me", hf_token=SecretStr("token"))


def spec(**more: Any) -> CampaignSpec:
    dataset = {"name": "org/rows", "field_instruction": "q", "field_output": "a"}
    return CampaignSpec.model_validate({"model_repo": "org/model", "datasets": [dataset], **more})


def context(given: CampaignSpec, *published: int, provider: str = "gradients", cycle: int = 4) -> Any:
    async def versions(*_: Any) -> list[int]:
        return list(published)

    return SimpleNamespace(
        spec=given,
        settings=KEYED,
        provider=SimpleNamespace(name=provider),
        repository=SimpleNamespace(published=versions),
        state=SimpleNamespace(name="daily runs!", number=cycle),
    )


def test_the_documents_file_and_account_are_enough() -> None:
    assert paid_training_checks.faults("daily", spec(), KEYED, "gradients") == []
    assert publish_targets.place("daily", spec(), KEYED, "gradients") == "hf://me/daily-{cycle}"
    assert publish_targets.place("daily", spec(), KEYED, "local") == "none"
    assert publish_targets.place("daily", spec(publish={"to": "none"}), KEYED, "gradients") == "none"
    assert publish_targets.place_of(context(spec())) == "hf://me/daily-runs-4"


@pytest.mark.parametrize(
    ("given", "settings", "says"),
    [
        ({}, CampaignSettings(), "TUNEFLEET_HF_USERNAME and HF_TOKEN"),
        ({"publish": {"to": "./models"}}, KEYED, "publish.to is ./models"),
        ({"model_repo": "builtin:gsm8k-llama-2m"}, KEYED, "Set model_repo to a model from the Hub"),
        ({"hours_to_complete": 145}, KEYED, "Set it to 144 or less"),
    ],
)
def test_what_gradients_could_not_go_on_with_is_a_fault(
    given: dict[str, Any], settings: CampaignSettings, says: str
) -> None:
    ((message, hint),) = paid_training_checks.faults("daily", spec(**given), settings, "gradients")
    assert says in f"{message} {hint}"
    assert paid_training_checks.faults("daily", spec(**given), settings, "local") == []


def test_every_fault_is_told_at_once() -> None:
    given = spec(publish={"to": "s3://bucket/x"}, hours_to_complete=500)
    with pytest.raises(Misconfigured, match=r"publish\.to is s3://bucket/x.*hours_to_complete is 500"):
        paid_training_checks.check(context(given))


def test_a_merge_on_runpod_is_on_the_hub_already() -> None:
    given = spec(merge={"on": "runpod"})
    assert publish_targets.place("daily", given, KEYED, "gradients") == "none"
    assert paid_training_checks.faults("daily", given, KEYED, "gradients") == []


def test_a_private_repository_is_spoken_of_before() -> None:
    (text,) = paid_training_checks.doubts("daily", spec(), KEYED, "gradients")
    assert "publish.private: false" in text
    assert paid_training_checks.doubts("daily", spec(publish={"private": False}), KEYED, "gradients") == []
    assert paid_training_checks.doubts("daily", spec(), KEYED, "local") == []


async def test_a_base_that_another_version_has_written_over_is_not_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paid_training_checks, "is_public", lambda repo, _: repo == "me/open")
    mine = Base("daily-v2", version=2, digest="d", url="hf://me/open")
    await paid_training_checks.check_base(context(spec(), 1, 2), mine)
    with pytest.raises(StepFailed, match="now has version 3, but version 2 is promoted"):
        await paid_training_checks.check_base(context(spec(), 2, 3), mine)
    await paid_training_checks.check_base(context(spec(), 2, 3, provider="local"), mine)
    with pytest.raises(StepFailed, match="public repositories only, and hf://me/closed is not public"):
        await paid_training_checks.check_base(context(spec(), 2), Base("daily-v2", version=2, url="hf://me/closed"))
    with pytest.raises(CycleFailed, match=r"publish\.to"):
        await paid_training_checks.check_base(context(spec()), Base("daily-v2", version=2, digest="d"))


async def test_what_somebody_else_has_put_there_is_not_written_over(tmp_path: Path) -> None:
    to = tmp_path / "mine"
    await publish_targets.check(context(spec()), str(to))
    to.mkdir()
    (to / "thesis.txt").write_text("all of it")
    with pytest.raises(ConflictError, match="not empty"):
        await publish_targets.check(context(spec()), str(to))
    await publish_targets.check(context(spec(), 1), str(to))  # an earlier model of the campaign's own lies there
