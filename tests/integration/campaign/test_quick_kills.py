"""SIGKILL to a process that runs the engine, at any of its points and at any moment, with a provider that bills.

What `test_kills` does to a whole server, done to its engine alone, which takes seconds instead of minutes a round.
`make campaign-chaos` plays as many rounds of both as it is asked for.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.billing import Billing, billing
from tests.integration.campaign import killed
from tests.unit.campaign.service.desk import ADA
from tests.unit.orchestrator.conftest import fresh_data
from tunefleet.campaign.service import service
from tunefleet.lifecycle.cycle import STEPS
from tunefleet.schemas.campaign import CampaignDetail, CycleView

__all__ = ["fresh_data"]

ROUNDS = int(os.environ.get("TUNEFLEET_CHAOS_ROUNDS", "2"))
CYCLES = 3
POINTS = 52
"""Of one cycle: before and after each intent and outcome, what is spent, and what is billed."""
WORST = ("after billing", "after billing", "before spend")
"""A task is paid for, and nobody has stored that; each round has its turn with them."""
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def bills() -> Iterator[Billing]:
    with billing(answer_s=0.05) as state:
        yield state


@pytest.fixture(scope="module")
def data(fresh_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(fresh_data, tmp_path_factory.mktemp("killed") / "data"))


def plan(number: int) -> list[tuple[int | str | None, float | None]]:
    """At which point each life ends, or after how many seconds; the last one goes on to the end."""
    dice = random.Random(number)
    lives: list[tuple[int | str | None, float | None]] = [(where, None) for where in WORST]
    lives += [(dice.randrange(POINTS), None) for _ in range(3)]
    lives += [(None, dice.uniform(0.05, 0.4)) for _ in range(3)]
    dice.shuffle(lives)
    return [*lives, (None, None)]


@pytest.mark.parametrize("number", range(ROUNDS))
def test_each_chunk_is_paid_for_once_whenever_the_engine_is_killed(data: Path, bills: Billing, number: int) -> None:
    # A fork of a process that has imported everything: a life begins in a moment.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([killed.__name__])
    name, kills, before = f"round-{number}", 0, len(bills.tasks)
    for at, after_s in plan(number):
        life = context.Process(target=killed.live, args=(data, bills.url, name, CYCLES, at))
        life.start()
        if after_s is not None:
            time.sleep(after_s)
            life.kill()
        life.join(PATIENCE_S)
        ended = life.exitcode
        life.kill()
        assert ended in {0, -signal.SIGKILL}, f"life {kills} of {name}"
        if ended == 0:
            break
        kills += 1
    assert ended == 0
    assert kills >= len(WORST)
    found = asyncio.run(_read(data, name))
    cycles = sorted((each for each in found.cycle_list if each.number < CYCLES), key=lambda each: each.number)
    _check(bills, before, found, cycles)


async def _read(data: Path, name: str) -> CampaignDetail:
    core = killed.opened(data)
    try:
        return await service.get(core, ADA, name)
    finally:
        core.close()


def _check(bills: Billing, before: int, found: CampaignDetail, cycles: list[CycleView]) -> None:
    mine = [task for task in bills.tasks[before:] if task["key"] in {f"{found.id}/{each}" for each in range(CYCLES)}]
    assert sorted(task["key"] for task in mine) == [f"{found.id}/{each}" for each in range(CYCLES)]
    assert [task["digest"] for task in mine] == [f"d{each}" for each in range(CYCLES)], (
        "a chunk was skipped or repeated"
    )
    assert [each.position for each in cycles] == list(range(CYCLES))
    assert [each.status for each in cycles] == ["completed"] * CYCLES
    assert [each.cost for each in cycles] == [2.0 + 10.0 * 0.5] * CYCLES
    everyone = sorted(found.cycle_list, key=lambda each: each.number)
    for cycle, after in zip(cycles, everyone[1:], strict=False):
        assert {step.name for step in cycle.steps if step.status == "done"} == set(STEPS)
        (sleep,) = [step for step in cycle.steps if step.name == "sleep"]
        assert sleep.intent == sleep.outcome, "what was drawn is drawn once"
        assert sleep.outcome is not None
        assert after.opened_at.timestamp() >= sleep.outcome["next_at"]
