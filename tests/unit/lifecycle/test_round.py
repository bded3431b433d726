"""The tables of a round's and of a federation's life."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.errors import IllegalTransition
from tunefleet.lifecycle import federation
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.round import FINAL, OUTCOMES, TRANSITIONS, RoundReason, RoundStatus, move


def test_every_reason_has_an_outcome_and_every_status_a_row() -> None:
    assert set(OUTCOMES) == set(RoundReason)
    assert set(TRANSITIONS) == set(RoundStatus)
    assert set(federation.TRANSITIONS) == set(FederationStatus)


@pytest.mark.parametrize("reason", RoundReason)
def test_every_reason_can_happen_to_some_status(reason: RoundReason) -> None:
    assert any(OUTCOMES[reason] in targets for targets in TRANSITIONS.values())


def test_the_way_of_a_round_that_is_published() -> None:
    status = RoundStatus.SAMPLING
    passed = [status]
    for reason in (
        RoundReason.SAMPLED, RoundReason.ALL_HERE, RoundReason.AGGREGATED, RoundReason.VERSION_STORED,
    ):  # fmt: skip
        status = move(status, reason)
        passed.append(status)
    assert passed == [
        RoundStatus.SAMPLING, RoundStatus.COLLECTING, RoundStatus.AGGREGATING, RoundStatus.PUBLISHING,
        RoundStatus.PUBLISHED,
    ]  # fmt: skip


@given(reasons=st.lists(st.sampled_from(RoundReason), max_size=40))
def test_no_path_leaves_a_final_state_and_none_skips_the_aggregation(reasons: list[RoundReason]) -> None:
    status = RoundStatus.SAMPLING
    passed = {status}
    for reason in reasons:
        try:
            after = move(status, reason)
        except IllegalTransition:
            continue
        assert not status.final
        status = after
        passed.add(status)
    if status is RoundStatus.PUBLISHED:
        assert passed >= {RoundStatus.COLLECTING, RoundStatus.AGGREGATING, RoundStatus.PUBLISHING}


@pytest.mark.parametrize("status", [status for status in RoundStatus if not status.final])
def test_whatever_is_not_final_may_be_abandoned(status: RoundStatus) -> None:
    assert move(status, RoundReason.ROLLED_BACK) is RoundStatus.ABANDONED
    assert move(status, RoundReason.FEDERATION_ENDED) is RoundStatus.ABANDONED


@pytest.mark.parametrize("status", sorted(FINAL))
def test_an_illegal_change_names_both_ends(status: RoundStatus) -> None:
    with pytest.raises(IllegalTransition, match=f"A round that is {status.value} cannot become aggregating"):
        move(status, RoundReason.ALL_HERE)


def test_a_federation_may_pause_and_go_on_until_it_has_ended() -> None:
    running, paused = FederationStatus.RUNNING, FederationStatus.PAUSED
    assert federation.move(FederationStatus.QUEUED, running) is running
    assert federation.move(running, paused) is paused
    assert federation.move(paused, running) is running
    for ended in federation.FINAL:
        assert ended.final
        with pytest.raises(IllegalTransition, match=f"A federation that is {ended.value} cannot become running"):
            federation.move(ended, running)
