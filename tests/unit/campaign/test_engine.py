"""What the engine makes of failures, waits, budgets and people; and that one campaign never waits for another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import SecretStr

from tests.unit.campaign.played import Counted, Crash, Played, Points, Shop, engine
from tests.unit.campaign.service.desk import made, reached
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.contract import CycleFailed, Later, NeedsYou, OrderFailed, Outcome, StepContext, StepFailed
from tunefleet.campaign.engine import Engine
from tunefleet.campaign.service import history, retries, service
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.campaign.steps.submit import SubmitStep
from tunefleet.errors import (
    ConflictError,
    DataError,
    ForbiddenError,
    InputError,
    MachineError,
    StoreError,
    TunefleetError,
    UnreachableError,
)
from tunefleet.lifecycle.cycle import StepName
from tunefleet.schemas.campaign import CampaignDetail, CampaignRetry
from tunefleet.settings import CampaignSettings


class Failing(Counted):
    """Raises what it is given, as often as there is something."""

    def __init__(self, name: StepName, errors: list[Exception]) -> None:
        super().__init__(name, [])
        self.errors = errors

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        if self.errors:
            raise self.errors.pop(0)
        return await super().act(context, intent)


class Hanging(Counted):
    """Never comes back."""

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        await asyncio.Event().wait()
        return {}


class Placing(SubmitStep):
    """Orders at Gradients, as far as is stored."""

    async def plan(self, context: StepContext) -> Outcome:
        return {**await super().plan(context), "provider": "gradients"}


class Billed(Points):
    """Kills the process once it has ordered."""

    def __call__(self, where: str) -> None:
        if where == "after billing":
            raise Crash(where)


async def seen(lab: Lab, id_: str) -> CampaignDetail:
    return await service.get(lab.core, lab.admin, id_)


async def run(lab: Lab, id_: str, shop: Shop, *real: Counted) -> CampaignDetail:
    await engine(lab, shop, Points(), real=real).advance(id_)
    return await seen(lab, id_)


async def test_a_failure_is_tried_again_after_a_while_that_doubles(lab: Lab) -> None:
    id_, shop = await made(lab), Shop()
    step = Failing(StepName.MERGE, [UnreachableError("away"), ValueError("a fault of ours")])
    pauses = []
    for _ in range(2):
        found = await run(lab, id_, shop, step)
        assert found.cycle is not None
        assert found.cycle.step == "merge"
        assert found.cycle.retry_at is not None
        pauses.append(found.cycle.retry_at.timestamp() - lab.clock.wall)
        lab.clock.advance(pauses[-1] + 1)
    assert pauses[0] == pytest.approx(60, rel=0.11)
    assert pauses[1] == pytest.approx(120, rel=0.11)
    found = await run(lab, id_, shop, step)
    assert found.cycle_list[-1].status == "completed"
    assert len(shop.orders) == 1


@pytest.mark.parametrize(
    ("step", "error", "status"),
    [
        (StepName.DATA, DataError("no such column"), "failed"),
        (StepName.WAIT, OrderFailed("the task has failed"), "failed"),
        (StepName.WAIT, InputError("a provider that cannot read its own answer"), "running"),
        (StepName.WAIT, CycleFailed("a provider in a hurry"), "running"),
        (StepName.EVALUATE, CycleFailed("no candidate can be measured"), "running"),
        (StepName.SELECT, CycleFailed("no candidate"), "running"),
        (StepName.MERGE, CycleFailed("cannot be merged"), "running"),
        (StepName.DATA, UnreachableError("the Hub is away"), "running"),
    ],
)
async def test_what_is_paid_for_is_not_given_up(lab: Lab, step: StepName, error: TunefleetError, status: str) -> None:
    found = await run(lab, await made(lab), Shop(), Failing(step, [error]))
    assert found.cycle is not None
    assert (found.cycle.status, found.cycle.step) == (status, step)
    assert error.message in (found.cycle.error or "")


async def test_a_task_that_failed_gives_its_chunk_to_the_next_cycle(lab: Lab) -> None:
    id_ = await made(lab)
    shop = Shop(states={f"ticket-{id_}/0": "failed"})
    found = await run(lab, id_, shop)
    assert found.cycle is not None
    assert (found.cycle.status, found.failures) == ("failed", 1)
    lab.clock.advance(120)
    found = await run(lab, id_, shop)
    assert shop.orders == [f"{id_}/0", f"{id_}/1"]
    cycles = (await history.list_cycles(lab.core, lab.admin, id_)).items
    assert [each.position for each in cycles] == [0, 0]


@pytest.mark.parametrize("error", [CycleFailed("422"), InputError("no such field"), ForbiddenError("not yours")])
async def test_an_order_that_cannot_be_asked_for_is_not_given_up(lab: Lab, error: TunefleetError) -> None:
    id_, shop = await made(lab), Shop()
    with pytest.raises(Crash):
        await engine(lab, shop, Billed()).advance(id_)
    lab.clock.advance(3600)
    shop.find_error = error
    found = await run(lab, id_, shop)
    assert found.cycle is not None
    assert (found.cycle.status, found.cycle.step) == ("running", "submit")
    shop.find_error = None
    lab.clock.advance(3600)
    found = await run(lab, id_, shop)
    assert found.cycle_list[-1].status == "completed"
    assert shop.orders == [f"{id_}/0"]


async def test_an_order_that_an_earlier_try_may_have_placed_is_ended_with_its_cycle(lab: Lab) -> None:
    id_, shop = await made(lab), Shop()
    step = Failing(StepName.SUBMIT, [UnreachableError("no answer"), InputError("never")])
    for _ in range(2):
        await run(lab, id_, shop, step)
        lab.clock.advance(61 * 1.1)
    (left,) = await CampaignRepository(lab.core).to_cancel()
    assert left.step is StepName.SUBMIT


async def test_a_provider_that_is_missing_is_a_failure_of_the_step_and_no_order(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_, shop = await made(lab), Shop()

    def missing(points: Points) -> object:
        raise MachineError("The provider cannot be loaded.", hint="Install it.")

    monkeypatch.setattr(shop, "provider", missing)
    found = await run(lab, id_, shop)
    assert found.cycle is not None
    assert (found.cycle.status, found.cycle.step) == ("running", "data")
    assert found.cycle.error == "The provider cannot be loaded. Install it."
    assert found.cycle.retry_at is not None


@pytest.mark.parametrize("stopped", [False, True])
async def test_an_order_is_asked_for_where_it_was_placed_whatever_is_set_by_now(lab: Lab, stopped: bool) -> None:
    id_ = await made(lab, provider=None)
    asked: list[str] = []

    def at(name: str, shop: Shop) -> Engine:
        acting = engine(lab, shop, Points())
        acting._settings = CampaignSettings(gradients_key=SecretStr("key") if name == "gradients" else None)

        def found(wanted: str) -> Any:
            asked.append(wanted)
            if wanted != name:
                raise MachineError(f"The provider {wanted} needs a key.")
            return lambda settings, client: shop.provider(Points())

        acting._find_provider = found
        return acting

    theirs, ours = Shop(states={f"ticket-{id_}/0": "running"}), Shop()
    paid = at("gradients", theirs)
    paid._steps = {**paid._steps, StepName.SUBMIT: Placing()}
    await paid.advance(id_)
    assert theirs.orders == [f"{id_}/0"]
    lab.clock.advance(3600)
    if stopped:
        await service.stop(lab.core, lab.admin, id_)
        (left,) = await CampaignRepository(lab.core).to_cancel()
        with pytest.raises(TunefleetError, match=r"placed at gradients: .*needs a key"):
            await at("local", ours).end_order(left)
        await at("gradients", theirs).end_order(left)
        assert theirs.cancelled == [f"ticket-{id_}/0"]
    else:
        await at("local", ours).advance(id_)
        found = await seen(lab, id_)
        assert found.cycle is not None
        assert (found.cycle.status, found.cycle.step) == ("running", "wait")
        assert "Restore the configuration of gradients" in (found.cycle.error or "")
        assert (found.cycle.error or "").startswith("Action required: `tunefleet campaign retry daily`. ")
    assert "local" not in asked
    assert ours.orders == ours.cancelled == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            NeedsYou("It is gone.", hint="Look there first."),
            "Action required: `tunefleet campaign retry daily`. It is gone. ",
        ),
        (
            NeedsYou("It is gone.", verb="retry --from upload"),
            "Action required: `tunefleet campaign retry daily --from upload`.",
        ),
        (StepFailed("It is slow."), "It is slow."),
    ],
)
async def test_a_step_that_needs_a_person_says_what_to_type(lab: Lab, error: StepFailed, said: str) -> None:
    id_ = await made(lab, budget={"max_failures": 2})
    step = Failing(StepName.MERGE, [error, error])
    found = await run(lab, id_, Shop(), step)
    assert found.cycle is not None
    assert (found.cycle.error or "").startswith(said)
    lines = (await history.read_log(lab.core, lab.admin, id_)).lines
    assert lines[-1].text.startswith(said)
    assert "Failure 1 of 2; retrying in " in lines[-1].text
    lab.clock.advance(120)
    held = await run(lab, id_, Shop(), step)
    assert (held.reason or "").startswith(
        said if isinstance(error, NeedsYou) else "Action required: `tunefleet campaign retry"
    )


async def test_an_order_whose_fate_nobody_knows_says_what_to_type(lab: Lab) -> None:
    id_, shop = await made(lab), Shop()
    with pytest.raises(Crash):
        await engine(lab, shop, Billed()).advance(id_)
    lab.clock.advance(3600)
    shop.find_error = InputError("It cannot be told.")
    found = await run(lab, id_, shop)
    assert found.cycle is not None
    assert found.cycle.error == "Action required: `tunefleet campaign retry daily`. It cannot be told."
    texts = [each.text for each in (await history.read_log(lab.core, lab.admin, id_)).lines]
    assert f"looking up the order {id_}/0 at played" in texts


@pytest.mark.parametrize("killed", [False, True])
async def test_the_sleep_between_two_cycles_is_said_with_its_end(lab: Lab, killed: bool) -> None:
    id_ = await made(lab, run_intervals={"min_hours": 5, "max_hours": 5})
    if killed:
        state = await reached(CampaignRepository(lab.core), id_, StepName.SLEEP)
        await CampaignRepository(lab.core).intend(state, {"next_at": lab.clock.wall + 18_000.0, "slept_s": 18_000.0})
        await CampaignRepository(lab.core).release(state)
    await run(lab, id_, Shop())
    texts = [each.text for each in (await history.read_log(lab.core, lab.admin, id_)).lines]
    said = "the cycle is complete; the next one opens in 5h, until 2027-01-15 13:00 UTC"
    assert texts[-1] == said


async def test_waiting_is_no_failure(lab: Lab) -> None:
    id_ = await made(lab)
    shop = Shop(states={f"ticket-{id_}/0": "running"})
    for _ in range(8):
        found = await run(lab, id_, shop)
        assert found.cycle is not None
        assert (found.cycle.step, found.cycle.tries, found.cycle.waiting) == ("wait", 0, "running")
        lab.clock.advance(601)
    shop.states.clear()
    found = await run(lab, id_, shop)
    assert found.cycle_list[-1].status == "completed"


async def test_no_order_is_placed_without_a_budget_for_it(lab: Lab) -> None:
    id_ = await made(lab, budget={"cost_per_task": 2.0, "max_cost": 3.0})
    shop = Shop()
    await run(lab, id_, shop)
    found = await run(lab, id_, shop)
    assert len(shop.orders) == 1
    assert found.spent == 2.0
    assert found.status == "held"
    assert "max_cost" in (found.reason or "")


async def test_a_stopped_campaign_cancels_its_task(lab: Lab) -> None:
    id_ = await made(lab)
    shop = Shop(states={f"ticket-{id_}/0": "running"})
    await run(lab, id_, shop)
    await service.stop(lab.core, lab.admin, id_)
    (left,) = await CampaignRepository(lab.core).to_cancel()
    await engine(lab, shop, Points()).end_order(left)
    assert shop.cancelled == [f"ticket-{id_}/0"]
    assert await CampaignRepository(lab.core).to_cancel() == []


async def test_a_task_that_cannot_be_cancelled_is_tried_again_after_a_while_and_spoken_of(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_, repository = await made(lab), CampaignRepository(lab.core)
    shop = Shop(states={f"ticket-{id_}/0": "running"})
    await run(lab, id_, shop)
    await service.stop(lab.core, lab.admin, id_)

    async def away(self: Played, ticket: str) -> None:
        raise UnreachableError("The provider does not respond.")

    with monkeypatch.context() as patched:
        patched.setattr(Played, "cancel", away)
        for pause_s in (60, 120):
            (left,) = await repository.to_cancel()
            with pytest.raises(UnreachableError):
                await engine(lab, shop, Points()).end_order(left)
            assert await repository.to_cancel() == []
            lab.clock.advance(pause_s * 0.8)
            assert await repository.to_cancel() == []
            lab.clock.advance(pause_s * 0.4)
    lines = (await history.read_log(lab.core, lab.admin, id_)).lines
    assert (
        "could not be cancelled, and may still be running at its provider: The provider does not respond."
        in lines[-1].text
    )
    (left,) = await repository.to_cancel()
    await engine(lab, shop, Points()).end_order(left)
    assert (shop.cancelled, await repository.to_cancel()) == ([f"ticket-{id_}/0"], [])


async def test_a_task_in_whose_place_another_is_ordered_is_cancelled_first_and_its_time_is_paid(lab: Lab) -> None:
    id_ = await made(lab, budget={"cost_per_second": 1.0})
    shop = Shop(states={f"ticket-{id_}/0": "running"})
    await run(lab, id_, shop)
    lab.clock.advance(601)
    await retries.retry(lab.core, lab.admin, id_, CampaignRetry(step=StepName.UPLOAD))
    found = await run(lab, id_, shop)
    assert shop.cancelled == [f"ticket-{id_}/0"]
    assert shop.orders == [f"{id_}/0", f"{id_}/0.1"]
    assert found.cycle_list[-1].status == "completed"
    assert found.spent == 4.0, "what the provider says of each task"


async def test_a_task_is_cancelled_whose_cycle_is_stopped_before_another_is_ordered(lab: Lab) -> None:
    id_ = await made(lab)
    shop = Shop(states={f"ticket-{id_}/0": "running"})
    await run(lab, id_, shop)
    await retries.retry(lab.core, lab.admin, id_, CampaignRetry(step=StepName.UPLOAD))
    await service.stop(lab.core, lab.admin, id_)
    (left,) = await CampaignRepository(lab.core).to_cancel()
    with pytest.raises(ConflictError, match="not cancelled at its provider yet"):
        await retries.retry(lab.core, lab.admin, (await made(lab, start=True)), CampaignRetry(cycle=0))
    await engine(lab, shop, Points()).end_order(left)
    assert (shop.orders, shop.cancelled) == ([f"{id_}/0"], [f"ticket-{id_}/0"])


async def test_a_campaign_that_hangs_holds_up_no_other(lab: Lab) -> None:
    slow, quick, shop = await made(lab, "slow"), await made(lab, "quick"), Shop()
    hanging = asyncio.create_task(engine(lab, shop, Points(), real=[Hanging(StepName.DATA, [])]).advance(slow))
    async with asyncio.timeout(10):
        await engine(lab, shop, Points()).advance(quick)
    assert shop.orders == [f"{quick}/0"]
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    # Whoever goes on need not wait for a lease.
    await engine(lab, shop, Points()).advance(slow)
    assert shop.orders == [f"{quick}/0", f"{slow}/0"]


async def test_somebody_who_lost_the_lease_drops_what_they_have(lab: Lab) -> None:
    id_, shop = await made(lab), Shop()
    hanging = asyncio.create_task(engine(lab, shop, Points(), real=[Hanging(StepName.DATA, [])]).advance(id_))
    await asyncio.sleep(0.1)
    await service.stop(lab.core, lab.admin, id_)
    async with asyncio.timeout(20):
        assert await hanging is True
    assert shop.orders == []


async def test_a_stop_is_noticed_even_after_the_store_has_failed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    id_, shop, failed, renew = await made(lab), Shop(), asyncio.Event(), CampaignRepository.renew

    async def failing(self: CampaignRepository, *given: Any) -> bool:
        if not failed.is_set():
            failed.set()
            raise StoreError("The disk is full.")
        return await renew(self, *given)

    monkeypatch.setattr(CampaignRepository, "renew", failing)
    hanging = asyncio.create_task(engine(lab, shop, Points(), real=[Hanging(StepName.DATA, [])]).advance(id_))
    async with asyncio.timeout(120):
        await failed.wait()
        await service.stop(lab.core, lab.admin, id_)
        assert await hanging is True
