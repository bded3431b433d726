"""What the engine makes of failures, waits, budgets and people; and that one campaign never waits for another."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.campaign.played import Counted, Points, Shop, engine
from tests.unit.services.campaigns.desk import made
from tests.unit.services.lab import Lab
from tunefleet.campaign.contract import CycleFailed, Later, Outcome, StepContext
from tunefleet.errors import DataError, MachineError, TunefleetError, UnreachableError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.services.campaigns import history, jobs
from tunefleet.services.campaigns.book import Book
from tunefleet.wire.campaign import CampaignDetail


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


async def seen(lab: Lab, id_: str) -> CampaignDetail:
    return await jobs.get(lab.core, lab.admin, id_)


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
        (StepName.WAIT, CycleFailed("the task has failed"), "failed"),
        (StepName.EVALUATE, CycleFailed("no candidate can be measured"), "running"),
        (StepName.SELECT, CycleFailed("no candidate"), "running"),
        (StepName.MERGE, CycleFailed("cannot be merged"), "running"),
        (StepName.DATA, UnreachableError("the hub is away"), "running"),
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
    await jobs.stop(lab.core, lab.admin, id_)
    (left,) = await Book(lab.core).to_cancel()
    await engine(lab, shop, Points()).end_order(left)
    assert shop.cancelled == [f"ticket-{id_}/0"]
    assert await Book(lab.core).to_cancel() == []


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
    await jobs.stop(lab.core, lab.admin, id_)
    async with asyncio.timeout(20):
        assert await hanging is True
    assert shop.orders == []
