"""What `tunefleet campaign run` says of campaigns that wait when it begins, or rest while it runs."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.cli.test_campaign_board import campaign
from tunefleet.cli.campaigns.run import _follow
from tunefleet.lifecycle.cycle import CampaignStatus
from tunefleet.schemas.campaign import CampaignLog, CampaignView

NEEDS = "Action required: `tunefleet campaign start daily`. 10 are spent."


class Looks(threading.Event):
    """Asks to end after some looks."""

    left = 3

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self.left -= 1
        return self.left < 0


def waiting(why: str) -> CampaignView:
    found = campaign()
    assert found.cycle is not None
    return found.model_copy(update={"cycle": found.cycle.model_copy(update={"waiting": why})})


def resting(status: CampaignStatus, reason: str | None) -> CampaignView:
    return campaign().model_copy(update={"status": status, "reason": reason})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (waiting("training"), "daily: merge: training"),
        (resting(CampaignStatus.HELD, NEEDS), f"daily is held. {NEEDS}"),
        (
            resting(CampaignStatus.HELD, "An older server held it."),
            "daily is held. An older server held it. Continue with `tunefleet campaign retry daily`.",
        ),
        (
            resting(CampaignStatus.PAUSED, "ada paused it."),
            "daily is paused. ada paused it. Continue with `tunefleet campaign resume daily`.",
        ),
        (
            resting(CampaignStatus.STOPPED, None),
            "daily is stopped. Continue with `tunefleet campaign start daily`.",
        ),
    ],
)
def test_what_a_campaign_waits_for_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], found: CampaignView, said: str
) -> None:
    verbs = SimpleNamespace(
        send=lambda specs, folder: None,
        log=lambda name, **given: CampaignLog(lines=(), next_id=0),
        get=lambda name: found,
    )
    client: Any = SimpleNamespace(campaigns=verbs)
    specs: Any = {"daily": SimpleNamespace(enabled=True)}
    _follow(client, specs, tmp_path, Looks(), as_json=False)
    assert " ".join(capsys.readouterr().err.split()) == said
