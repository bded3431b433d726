"""Whatever two holders, crashes and people do in whatever order: no step is done twice, and no chunk is skipped."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.unit.campaign.service.desk import ADA, another, made
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.service import retries, service
from tunefleet.campaign.service.cycle_state import TASK, CycleState, LeaseLost
from tunefleet.campaign.service.engine_repository import LEASE_S, CampaignRepository
from tunefleet.db import Connection
from tunefleet.db.campaigns import cycles
from tunefleet.db.campaigns.cycles import CycleRow, StepRow
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.cycle import STEPS, CycleStatus, StepName
from tunefleet.schemas.campaign import CampaignRetry

ACTS = 400


class Holder:
    """Somebody who works on a campaign, forgets it when killed, and may come back with an old state."""

    def __init__(
        self, repository: CampaignRepository, name: str, draw: random.Random, done: Counter[tuple[int, int, StepName]]
    ) -> None:
        self._repository, self._name, self._draw, self._done = repository, name, draw, done
        self._state: CycleState | None = None
        self._old: list[CycleState] = []

    async def act(self, id_: str) -> None:
        state = self._state
        if state is None:
            self._state = await self._repository.take(id_, self._name)
            return
        self._old.append(state)
        kind = self._draw.choices(["step", "later", "fail", "die", "stale"], [40, 4, 2, 2, 6])[0]
        if kind == "die":
            self._state = None
        elif kind == "stale":
            await self._finish(self._draw.choice(self._old), forget=False)
        elif kind == "later":
            self._state = None
            await self._repository.later(state, 0.0, "It waits.")
        elif kind == "fail":
            self._state = None
            await self._repository.failed(state, "It failed.", fatal=self._draw.random() < 0.3)
        else:
            await self._finish(state, forget=True)

    async def _finish(self, state: CycleState, *, forget: bool) -> None:
        if forget:
            self._state = None
        if state.intent is None:
            state = await self._repository.intend(state, {"step": state.step.value})
        if state.step is StepName.SUBMIT:
            await self._repository.spend(state, TASK, 1.0, state.order_key)
        after = await self._repository.done(state, {"next_at": 0.0})
        self._done[state.number, state.retried, state.step] += 1
        if forget:
            self._state = after


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(3, 23))])
async def test_no_step_is_done_twice_and_no_chunk_is_skipped(lab: Lab, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    id_ = await made(lab, budget={"max_failures": 3})
    done: Counter[tuple[int, int, StepName]] = Counter()
    people: list[Callable[[], Awaitable[object]]] = [
        lambda: service.pause(lab.core, ADA, id_),
        lambda: service.start(lab.core, ADA, id_),
        lambda: retries.retry(lab.core, ADA, id_, CampaignRetry()),
        lambda: retries.remerge(lab.core, ADA, id_),
        lambda: service.stop(lab.core, ADA, id_),
    ]
    async with another(lab, tmp_path / "other") as core:
        holders = [
            Holder(CampaignRepository(each, jitter=random.Random(seed)), name, draw, done)
            for each, name in ((lab.core, "one"), (core, "two"))
        ]
        for _ in range(ACTS):
            lab.clock.advance(draw.choice([0, 0, 1, LEASE_S, 600]))
            try:
                if draw.random() < 0.05:
                    await draw.choices(people, [2, 6, 2, 2, 1])[0]()
                else:
                    await draw.choice(holders).act(id_)
            except (LeaseLost, ConflictError):
                pass  # refused, as it must be; what matters is what was stored
    assert max(done.values()) == 1
    found, steps = await lab.core.read(_stored)
    outcomes = {(step.cycle, step.step) for step in steps if step.outcome is not None}
    models = [cycle.position for cycle in found if (cycle.number, StepName.SELECT) in outcomes]
    assert len(models) >= 2, "the test does something"
    assert models == sorted(set(models)), "there is one model of a chunk"
    given_up = {cycle.position for cycle in found if cycle.status == CycleStatus.ABANDONED}
    assert set(range(max(models))) <= {*models, *given_up}, "no chunk is skipped"
    for cycle in found:
        if cycle.status == CycleStatus.COMPLETED:
            assert all((cycle.number, step) in outcomes for step in STEPS)


def _stored(connection: Connection) -> tuple[list[CycleRow], list[StepRow]]:
    found = cycles.page(connection, 1, limit=1000)[::-1]
    return found, cycles.steps(connection, 1, [cycle.number for cycle in found])
