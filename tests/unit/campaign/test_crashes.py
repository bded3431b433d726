"""A process that dies at any point of a cycle: whoever goes on orders each chunk once, and does every step."""

from __future__ import annotations

import pytest

from tests.unit.campaign.played import Crash, Crashing, Points, Shop, engine
from tests.unit.campaign.service.desk import made
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.service import history, service
from tunefleet.errors import UnreachableError
from tunefleet.lifecycle.cycle import STEPS, StepName

CYCLES = 2
COSTS = {"cost_per_task": 3.0, "cost_per_second": 0.5}


async def play(lab: Lab, shop: Shop, name: str, at: int | None) -> tuple[list[str], list[tuple[int, StepName]]]:
    """Run two cycles with a crash at one point, and go on with another process after it."""
    id_ = await made(lab, name, budget=COSTS, run_intervals={"min_hours": 1, "max_hours": 2})
    points, acts = Points(at), []
    runner = engine(lab, shop, points, acts)
    for _ in range(CYCLES):
        try:
            await runner.advance(id_)
        except Crash:
            await Crashing(lab, Points()).begin()
            runner = engine(lab, shop, Points(), acts)
            await runner.advance(id_)
        lab.clock.advance(2 * 3600)
    await service.stop(lab.core, lab.admin, id_)
    found = await history.list_cycles(lab.core, lab.admin, id_)
    cycles = {each.number: each for each in found.items}
    assert [cycles[number].status for number in range(CYCLES)] == ["completed"] * CYCLES
    assert [cycles[number].position for number in range(CYCLES)] == list(range(CYCLES))
    assert [cycles[number].cost for number in range(CYCLES)] == [3.0 + 2 * 0.5] * CYCLES
    assert sorted(key for key in shop.orders if key.startswith(id_)) == [f"{id_}/{number}" for number in range(CYCLES)]
    for number in range(CYCLES):
        done = {each.name for each in cycles[number].steps if each.status == "done"}
        assert done == set(STEPS)
        (sleep,) = [each for each in cycles[number].steps if each.name == "sleep"]
        assert sleep.intent == sleep.outcome, "what was drawn is drawn once"
    return points.seen, acts


async def crashed(lab: Lab, every: int) -> None:
    """Crash at the first of so many points, and at the next of them, to the end."""
    shop = Shop()
    points, _ = await play(lab, shop, "whole", None)
    assert {"before intend", "after intend", "before done", "after done", "before billing", "after billing"} <= set(
        points
    )
    assert len(points) >= 2 * CYCLES * 2 * len(STEPS)
    # Of the second cycle the first points: what follows is as in the first.
    for at, where in [*enumerate(points[: len(points) // 2 + 4])][::every]:
        _, acts = await play(lab, shop, f"crash-{at}", at)
        again = [act for act in set(acts) if acts.count(act) > 1]
        assert len(again) <= 1, f"only the step that was cut off {where} is done again"


async def test_a_crash_costs_nothing(lab: Lab) -> None:
    """At points of all kinds; `tests/integration/campaign/test_crashes.py` crashes at each."""
    await crashed(lab, every=7)


async def test_an_order_that_cannot_be_asked_for_is_not_placed_again(lab: Lab) -> None:
    shop = Shop(find_error=UnreachableError("The provider does not respond."))
    id_ = await made(lab)
    with pytest.raises(Crash):
        await engine(lab, shop, Points(_number_of("after billing"))).advance(id_)
    await Crashing(lab, Points()).begin()
    for _ in range(3):
        await engine(lab, shop, Points()).advance(id_)
        lab.clock.advance(3600)
    assert shop.orders == [f"{id_}/0"]
    shop.find_error = None
    await engine(lab, shop, Points()).advance(id_)
    assert shop.orders[:1] == [f"{id_}/0"]
    assert shop.orders.count(f"{id_}/0") == 1


def _number_of(where: str) -> int:
    """Return the number of the first such point of a cycle."""
    # Two points an intent, two an outcome; data and upload are before the order's intent.
    order = ["before intend", "after intend", "before done", "after done"] * 2 + ["before intend", "after intend"]
    return [*order, "before billing", "after billing"].index(where)
