"""Cycles are durable: what is intended is known after a crash, and two holders never both move one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import orjson
import pytest

from tests.unit.campaign.service.desk import ADA, HOUR, another, go, made, reached, taken
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.service import history, service
from tunefleet.campaign.service import retries as again
from tunefleet.campaign.service.cycle_state import LeaseLost
from tunefleet.campaign.service.cycles import backoff_s
from tunefleet.campaign.service.engine_repository import LEASE_S, CampaignRepository
from tunefleet.db import Connection
from tunefleet.db.campaigns import campaigns, cycles
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus, StepName
from tunefleet.schemas.campaign import CampaignRetry


@pytest.fixture
def repository(lab: Lab) -> CampaignRepository:
    return CampaignRepository(lab.core)


@pytest.fixture
async def other(lab: Lab, tmp_path: Path) -> AsyncIterator[CampaignRepository]:
    async with another(lab, tmp_path / "other") as core:
        yield CampaignRepository(core)


async def test_a_cycle_goes_through_its_steps_in_their_order_and_the_next_one_opens_when_it_is_due(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    state = await taken(repository, id_)
    seen = []
    while state is not None:
        seen.append(state.step)
        assert set(state.outcomes) == set(seen[:-1])
        outcome = {"next_at": lab.clock.wall + HOUR} if state.step is StepName.SLEEP else {"n": len(seen)}
        state = await repository.done(await repository.intend(state, {}), outcome)  # type: ignore[assignment]
    assert seen == list(StepName)
    assert await repository.due() == {id_: lab.clock.wall + HOUR}
    assert await repository.take(id_, "one") is None
    lab.clock.advance(HOUR)
    again = await taken(repository, id_)
    assert (again.number, again.position, again.step, dict(again.outcomes)) == (1, 1, StepName.DATA, {})


async def test_after_a_crash_another_process_finds_what_was_intended(
    lab: Lab, repository: CampaignRepository, other: CampaignRepository
) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.SUBMIT)
    await repository.intend(state, {"order": state.order_key})
    assert await other.take(id_, "two") is None, "the lease has not ended"
    lab.clock.advance(LEASE_S)
    found = await taken(other, id_, "two")
    assert (found.step, found.intent) == (StepName.SUBMIT, {"order": f"{id_}/0"})
    assert found.outcomes[StepName.DATA] == {"of": "data"}


async def test_whoever_lost_the_lease_changes_nothing(
    lab: Lab, repository: CampaignRepository, other: CampaignRepository
) -> None:
    id_ = await made(lab)
    old = await reached(repository, id_, StepName.WAIT)
    lab.clock.advance(LEASE_S)
    new = await taken(other, id_, "two")
    for act in (
        repository.done(old, {}),
        repository.intend(old, {}),
        repository.later(old, 0.0, "x"),
        repository.failed(old, "x", fatal=True),
    ):
        with pytest.raises(LeaseLost):
            await act
    assert not await repository.renew(old)
    await repository.release(old)
    moved = await other.done(new, {"by": "two"})
    assert moved is not None
    assert moved.outcomes[StepName.WAIT] == {"by": "two"}


async def test_a_step_is_done_once_even_by_the_same_holder(lab: Lab, repository: CampaignRepository) -> None:
    state = await reached(repository, await made(lab), StepName.MERGE)
    await repository.done(state, {"first": True})
    with pytest.raises(LeaseLost, match="has moved on from its step merge"):
        await repository.done(state, {"second": True})


async def test_a_lease_that_is_renewed_does_not_end(
    lab: Lab, repository: CampaignRepository, other: CampaignRepository
) -> None:
    id_ = await made(lab)
    state = await taken(repository, id_)
    for _ in range(3):
        lab.clock.advance(LEASE_S - 1)
        assert await repository.renew(state)
    assert await other.take(id_, "two") is None
    await repository.release(state)
    assert await other.take(id_, "two") is not None


async def test_another_intent_is_refused_and_the_same_one_is_not(lab: Lab, repository: CampaignRepository) -> None:
    state = await taken(repository, await made(lab))
    state = await repository.intend(state, {"a": 1, "b": 2})
    assert (await repository.intend(state, {"b": 2, "a": 1})).intent == {"a": 1, "b": 2}
    with pytest.raises(ConflictError, match="already has a different intent"):
        await repository.intend(state, {"a": 2})


async def test_what_waits_is_free_for_anybody_and_due_when_it_says(
    lab: Lab, repository: CampaignRepository, other: CampaignRepository
) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.WAIT)
    await repository.later(state, lab.clock.wall + 600, "The task trains.")
    assert await repository.due() == {id_: lab.clock.wall + 600}
    assert await other.take(id_, "two") is None
    shown = (await service.get(lab.core, ADA, "daily")).cycle
    assert shown is not None
    assert shown.waiting == "The task trains."
    lab.clock.advance(600)
    assert (await taken(other, id_, "two")).step is StepName.WAIT


@pytest.mark.parametrize(("tries", "pause_s"), [(1, 60), (2, 120), (3, 240), (6, 1920), (7, 3600), (60, 3600)])
def test_pauses_double_up_to_an_hour_and_spread_by_a_tenth(tries: int, pause_s: float) -> None:
    assert backoff_s(tries, 0.0) == pause_s
    assert backoff_s(tries, -1.0) == pytest.approx(pause_s * 0.9)
    assert backoff_s(tries, 1.0) == pytest.approx(pause_s * 1.1)


async def test_a_step_that_fails_is_tried_again_and_holds_the_campaign_after_so_many_times(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab, budget={"max_failures": 3})
    for tries in range(3):
        state = await taken(repository, id_)
        assert state.tries == tries
        await repository.failed(state, "The provider answers 500.", fatal=False)
        assert await repository.take(id_, "one") is None
        lab.clock.advance(backoff_s(tries + 1, 1.0))
    shown = await service.get(lab.core, ADA, "daily")
    assert shown.status is CampaignStatus.HELD
    why = "The step data of cycle 0 failed 3 times in a row: The provider answers 500."
    assert shown.reason == f"Action required: `tunefleet campaign retry daily`. {why}"
    assert shown.cycle is not None
    assert shown.cycle.status is CycleStatus.RUNNING
    assert await repository.due() == {}


async def test_a_success_in_between_ends_the_failures_in_a_row(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab, budget={"max_failures": 2})
    for _ in range(4):
        await repository.failed(await taken(repository, id_), "x", fatal=False)
        lab.clock.advance(HOUR)
        await repository.later(await taken(repository, id_), 0.0, "It answers again.")
    assert (await service.get(lab.core, ADA, "daily")).status is CampaignStatus.ACTIVE


async def test_a_dead_letter_keeps_its_reason_and_leaves_its_chunk_to_the_next_cycle(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab, budget={"max_failures": 2})
    await go(repository, await taken(repository, id_), to=None)
    state = await reached(repository, id_, StepName.WAIT)
    assert state.position == 1
    await repository.failed(state, "The task failed: node_training_failure.", fatal=True)
    assert await repository.take(id_, "one") is None, "there is a pause before the next one"
    lab.clock.advance(backoff_s(1, 1.0))
    again = await taken(repository, id_)
    assert (again.number, again.position) == (2, 1)
    assert again.order_key == f"{id_}/2"
    await repository.failed(again, "No.", fatal=True)
    shown = await service.get(lab.core, ADA, "daily")
    assert (shown.status, shown.failures) == (CampaignStatus.HELD, 2)
    dead = shown.cycle_list[1]
    assert (dead.status, dead.error) == (CycleStatus.FAILED, "The task failed: node_training_failure.")
    assert [step.status.value for step in dead.steps] == ["done", "done", "done", "failed"]


async def test_a_pause_lets_the_step_that_acts_end_and_begins_no_other(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    state = await repository.intend(await reached(repository, id_, StepName.SUBMIT), {})
    await service.pause(lab.core, ADA, id_)
    assert await repository.renew(state)
    assert await repository.done(state, {"ticket": "t-1"}) is None
    assert (await repository.due(), await repository.take(id_, "one")) == ({}, None)
    await service.resume(lab.core, ADA, id_)
    again = await taken(repository, id_, "two")
    assert (again.step, again.outcomes[StepName.SUBMIT]) == (StepName.WAIT, {"ticket": "t-1"})


async def test_a_paused_campaign_intends_nothing(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.SUBMIT)
    await service.pause(lab.core, ADA, id_)
    with pytest.raises(LeaseLost, match="is paused"):
        await repository.intend(state, {})


async def test_what_a_stop_gives_up_is_to_be_cancelled_at_the_provider(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    state = await go(repository, await taken(repository, id_), to=StepName.WAIT, submit={"ticket": "t-9"})
    assert state is not None
    await service.stop(lab.core, ADA, id_)
    with pytest.raises(LeaseLost):
        await repository.later(state, 0.0, "x")
    assert await repository.to_cancel() == [], "who held it may still be placing the order"
    lab.clock.advance(LEASE_S)
    (left,) = await repository.to_cancel()
    assert (left.step, left.outcomes[StepName.SUBMIT]) == (StepName.WAIT, {"ticket": "t-9"})
    await repository.cancelled(left)
    assert await repository.to_cancel() == []
    assert await repository.take(id_, "one") is None
    await made(lab, start=True)
    again = await taken(repository, id_)
    assert (again.number, again.position) == (1, 0)


@pytest.mark.parametrize(
    ("step", "left"), [(StepName.DATA, 0), (StepName.UPLOAD, 1), (StepName.SUBMIT, 1), (StepName.EVALUATE, 0)]
)
async def test_a_stop_cancels_only_what_may_run(
    lab: Lab, repository: CampaignRepository, step: StepName, left: int
) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, step)
    await repository.intend(state, {"key": state.order_key})
    await service.stop(lab.core, ADA, id_)
    lab.clock.advance(LEASE_S)
    found = await repository.to_cancel()
    assert len(found) == left
    assert all(each.intent == {"key": f"{id_}/0"} for each in found)


async def test_the_log_keeps_lines_in_their_order_and_no_secret(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    state = await taken(repository, id_)
    token = await repository.token(id_)
    await repository.log(state, "info", f"Fetching https://me:word@host/rows with {token}.")
    await repository.log(state, "warning", "Slow.")
    read = await history.read_log(lab.core, ADA, "daily")
    assert [(line.level, line.campaign, line.step) for line in read.lines] == [
        ("info", "daily", StepName.DATA),
        ("warning", "daily", StepName.DATA),
    ]
    assert "word" not in read.lines[0].text
    assert token not in read.lines[0].text
    assert (await history.read_log(lab.core, ADA, "daily", after=read.next_id)).lines == ()


async def test_campaigns_are_taken_side_by_side(lab: Lab, repository: CampaignRepository) -> None:
    first, second = await made(lab, "first"), await made(lab, "second")
    await repository.failed(await taken(repository, first), "x", fatal=False)
    assert (await taken(repository, second, "two")).name == "second"
    due = await repository.due()
    assert due[second] == lab.clock.wall + LEASE_S
    assert due[first] > lab.clock.wall


async def test_a_file_that_this_version_refuses_holds_its_campaign_and_no_other(
    lab: Lab, repository: CampaignRepository
) -> None:
    broken, stopped, well = [await made(lab, name) for name in ("broken", "stopped", "well")]
    await reached(repository, stopped, StepName.WAIT)
    await service.stop(lab.core, ADA, stopped)
    await reached(repository, broken, StepName.SUBMIT)
    await repository.release(await taken(repository, broken))
    for id_ in (broken, stopped):
        await lab.core.write(partial(_spoil, id_=id_))
    assert await repository.take(broken, "one") is None
    assert (await taken(repository, well)).step is StepName.DATA
    lab.clock.advance(HOUR)
    assert await repository.to_cancel() == [], "it is asked for again later"
    shown = {each.name: each for each in (await service.list_(lab.core, ADA)).items}
    assert (shown["broken"].status, shown["broken"].base_model) == (CampaignStatus.HELD, "org/model")
    assert "is not valid: samples_per_training" in (shown["broken"].reason or "")
    needs = "Action required: correct the campaign's file, then `tunefleet campaign start broken`. "
    assert (shown["broken"].reason or "").startswith(needs)
    line = (await history.read_log(lab.core, ADA, broken)).lines[-1]
    assert line.text.startswith(f"held: {needs}")
    assert (await service.get(lab.core, ADA, broken)).spec["samples_per_training"] == "many"
    for name in ("broken", "stopped"):
        await made(lab, name)
    lab.clock.advance(HOUR)
    assert [each.name for each in await repository.to_cancel()] == ["stopped"]
    await again.retry(lab.core, ADA, broken, CampaignRetry())
    assert (await taken(repository, broken)).step is StepName.SUBMIT, "the cycle goes on where it was"


def _spoil(connection: Connection, *, id_: str) -> None:
    row = campaigns.by_id(connection, id_)
    assert row is not None
    text = orjson.dumps({**orjson.loads(row.spec), "samples_per_training": "many"}).decode()
    campaigns.change(connection, row, {"spec": text})
    for cycle in cycles.page(connection, row.seq, limit=9):
        cycles.change(connection, cycle, {"spec": text})


async def test_a_clock_that_was_years_ahead_lets_nothing_wait_for_years(
    lab: Lab, repository: CampaignRepository
) -> None:
    ahead = 9000 * HOUR
    resting, waiting = await made(lab, "resting"), await made(lab, "waiting")
    lab.clock.wall += ahead
    state = await taken(repository, resting)
    await repository.log(state, "info", "it began")
    await go(repository, state, to=None, sleep={"next_at": lab.clock.wall + HOUR})
    await repository.later(await taken(repository, waiting), lab.clock.wall + HOUR, "The provider is slow.")
    lab.clock.wall -= ahead
    for _ in range(2):
        await repository.begin()
        due = await repository.due()
        assert {id_: round(at - lab.clock.wall) for id_, at in due.items()} == {resting: HOUR, waiting: HOUR}
    lines = (await history.read_log(lab.core, ADA, resting)).lines
    assert "the clock was set back by 32,400,000 s" in lines[-1].text
    await repository.look_at_clock(lab.clock.wall + 30)
    assert (await repository.due())[resting] == lab.clock.wall + HOUR, "so little is only a correction"
