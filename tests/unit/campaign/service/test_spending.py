"""What a campaign may spend: entered once, looked at before each paid call, and held at the limit."""

from __future__ import annotations

import pytest

from tests.unit.campaign.service.desk import ADA, HOUR, go, made, reached, spec, taken
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.service import service
from tunefleet.campaign.service.cycle_state import DAY_S, SECONDS, TASK, Budget, BudgetError
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.lifecycle.cycle import CampaignStatus, StepName


@pytest.fixture
def repository(lab: Lab) -> CampaignRepository:
    return CampaignRepository(lab.core)


@pytest.mark.parametrize(
    ("spent", "limits", "fits"),
    [
        (0.0, {"max_cost": 10, "cost_per_task": 10}, True),
        (0.5, {"max_cost": 10, "cost_per_task": 10}, False),
        (9.0, {"max_cost": 10, "cost_per_second": 0.5 / (8 * HOUR)}, True),
        (9.6, {"max_cost": 10, "cost_per_second": 0.5 / (8 * HOUR)}, False),
        (10.0, {"max_cost": 10, "cost_per_second": 1e-9}, False),
        (1e9, {"cost_per_task": 10}, True),
    ],
)
def test_the_next_task_must_fit_into_what_is_left(spent: float, limits: dict[str, float], fits: bool) -> None:
    budget = Budget(spent, (), 0)
    if fits:
        budget.check(spec(budget=limits))
        return
    with pytest.raises(BudgetError, match="max_cost is 10") as refused:
        budget.check(spec(budget=limits))
    assert refused.value.until is None
    assert refused.value.hint is not None


def test_tasks_of_a_day_wait_until_the_oldest_that_counts_is_a_day_old() -> None:
    two = spec(budget={"max_tasks_per_day": 2})
    Budget(0.0, (100.0,), 0).check(two)
    with pytest.raises(BudgetError) as refused:
        Budget(0.0, (50.0, 100.0, 200.0), 0).check(two)
    assert refused.value.until == 100.0 + DAY_S


def test_too_many_failures_in_a_row_are_no_time_to_pay() -> None:
    with pytest.raises(BudgetError, match="2 cycles in a row have failed"):
        Budget(0.0, (), 2).check(spec(budget={"max_failures": 2}))


async def test_what_is_entered_twice_counts_once_and_an_order_is_not_refused_for_its_own_price(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab, budget={"max_cost": 10, "cost_per_task": 10})
    state = await reached(repository, id_, StepName.SUBMIT)
    for _ in range(3):
        await repository.spend(state, TASK, 10.0, state.order_key)
    assert (await service.get(lab.core, ADA, id_)).spent == 10.0
    (await repository.budget(state)).check(state.spec)
    assert await go(repository, state, to=None) is None
    later = await reached(repository, id_, StepName.SUBMIT)
    budget = await repository.budget(later)
    assert (budget.spent, budget.tasks_at) == (10.0, (lab.clock.wall,))
    with pytest.raises(BudgetError, match="10 was spent, a task costs 10, and max_cost is 10"):
        budget.check(later.spec)


async def test_seconds_are_entered_beside_the_task_under_the_same_key(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.WAIT)
    await repository.spend(state, TASK, 5.0, state.order_key)
    await repository.spend(state, SECONDS, 2.5, state.order_key)
    shown = await service.get(lab.core, ADA, id_)
    assert (shown.spent, shown.cycle_list[0].cost) == (7.5, 7.5)


async def test_what_was_paid_is_entered_even_if_somebody_else_has_the_campaign(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.SUBMIT)
    await service.stop(lab.core, ADA, id_)
    await repository.spend(state, TASK, 3.0, state.order_key)
    assert (await service.get(lab.core, ADA, id_)).spent == 3.0


async def test_a_budget_that_is_spent_holds_the_campaign_until_it_is_raised(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab, budget={"max_cost": 1, "cost_per_task": 1})
    state = await reached(repository, id_, StepName.SUBMIT)
    await repository.over_budget(state, BudgetError("1 are spent.", hint="Raise max_cost."))
    shown = await service.get(lab.core, ADA, id_)
    needs = "Action required: correct the campaign's file, then `tunefleet campaign start daily`."
    assert (shown.status, shown.reason) == (CampaignStatus.HELD, f"{needs} 1 are spent. Raise max_cost.")
    assert await repository.take(id_, "one") is None
    await made(lab, budget={"max_cost": 2, "cost_per_task": 1}, start=True)
    again = await taken(repository, id_)
    assert (again.step, again.number) == (StepName.SUBMIT, 0)
    assert again.spec.budget.max_cost == 2, "a limit holds at once, even for a cycle that is open"


async def test_the_tasks_of_a_day_are_waited_for_without_anybody(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.SUBMIT)
    await repository.over_budget(state, BudgetError("Enough for today.", until=lab.clock.wall + HOUR))
    shown = await service.get(lab.core, ADA, id_)
    assert shown.status is CampaignStatus.ACTIVE
    assert shown.cycle is not None
    assert shown.cycle.waiting == "Enough for today."
    assert await repository.take(id_, "one") is None
    lab.clock.advance(HOUR)
    assert (await taken(repository, id_)).step is StepName.SUBMIT


async def test_only_the_tasks_of_the_last_day_count(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    for _ in range(2):
        state = await reached(repository, id_, StepName.SUBMIT)
        await repository.spend(state, TASK, 1.0, state.order_key)
        await go(repository, state, to=None)
        lab.clock.advance(DAY_S * 0.6)
    state = await reached(repository, id_, StepName.SUBMIT)
    assert len((await repository.budget(state)).tasks_at) == 1
