"""The tables of the life of a campaign, a cycle, a step and a version of a model."""

from __future__ import annotations

import pytest

from tunefleet.errors import IllegalTransition
from tunefleet.lifecycle import cycle
from tunefleet.lifecycle.cycle import (
    CAMPAIGN_TRANSITIONS,
    CYCLE_TRANSITIONS,
    CampaignStatus,
    CycleStatus,
    Stage,
    StepName,
    move_campaign,
    move_cycle,
    needs_you,
)


def test_every_status_has_a_row() -> None:
    assert set(CAMPAIGN_TRANSITIONS) == set(CampaignStatus)
    assert set(CYCLE_TRANSITIONS) == set(CycleStatus)
    assert set(cycle.TRANSITIONS) == set(Stage)


def test_the_steps_follow_each_other_and_the_paid_one_comes_after_what_it_needs() -> None:
    walked = [StepName.DATA]
    while (step := walked[-1].next) is not None:
        walked.append(step)
    assert " ".join(walked) == "data upload submit wait evaluate select merge gate publish record sleep"
    assert StepName.GATE.and_later == (StepName.GATE, StepName.PUBLISH, StepName.RECORD, StepName.SLEEP)
    assert StepName.SLEEP.and_later == (StepName.SLEEP,)


def test_what_is_held_goes_on_only_when_somebody_says_so_and_what_is_stopped_may_start_again() -> None:
    assert move_campaign(CampaignStatus.HELD, CampaignStatus.ACTIVE) is CampaignStatus.ACTIVE
    assert move_campaign(CampaignStatus.STOPPED, CampaignStatus.ACTIVE) is CampaignStatus.ACTIVE
    with pytest.raises(IllegalTransition, match="A campaign that is stopped cannot become paused"):
        move_campaign(CampaignStatus.STOPPED, CampaignStatus.PAUSED)
    with pytest.raises(IllegalTransition, match="A campaign that is paused cannot become held"):
        move_campaign(CampaignStatus.PAUSED, CampaignStatus.HELD)


def test_a_dead_letter_may_run_again_and_never_simply_counts_as_completed() -> None:
    assert move_cycle(CycleStatus.FAILED, CycleStatus.RUNNING) is CycleStatus.RUNNING
    with pytest.raises(IllegalTransition, match="A cycle that is failed cannot become completed"):
        move_cycle(CycleStatus.FAILED, CycleStatus.COMPLETED)


def test_a_promoted_version_is_only_ever_succeeded() -> None:
    assert cycle.move_version(Stage.ARCHIVED, Stage.PROMOTED) is Stage.PROMOTED
    with pytest.raises(IllegalTransition, match="A version that is promoted cannot become candidate"):
        cycle.move_version(Stage.PROMOTED, Stage.CANDIDATE)


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("retry", "Action required: `tunefleet campaign retry daily`. It failed."),
        ("retry --from upload", "Action required: `tunefleet campaign retry daily --from upload`. It failed."),
        ("start", "Action required: correct the campaign's file, then `tunefleet campaign start daily`. It failed."),
    ],
)
def test_what_a_person_has_to_type_is_said_first(verb: str, text: str) -> None:
    assert needs_you("daily", verb, "It failed.") == text
