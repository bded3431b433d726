"""Tasks that no registered worker can ever run, and workers that have been away for long."""

from __future__ import annotations

import pytest

from tests.unit.orchestrator.lab import TRAIN, Lab
from tunefleet.orchestrator.scheduling import demand
from tunefleet.orchestrator.scheduling.demand import WorkerPool
from tunefleet.orchestrator.workers import workers

TAGGED = TRAIN + "  resources: {tags: [lab]}\n"
GRACE_S = 60.0
WEEK_S = 7 * 86_400.0


def set_grace(lab: Lab, seconds: float | None) -> None:
    lab.core.settings = lab.core.settings.model_copy(update={"no_worker_grace_s": seconds})


@pytest.mark.parametrize(
    ("setting_s", "limits"),
    [(GRACE_S, ""), (None, "  limits: {no_worker_grace_s: 60}\n"), (5.0, "  limits: {no_worker_grace_s: 60}\n")],
    ids=["the server's", "the task's", "the task's overrides the server's"],
)
async def test_a_task_that_no_worker_can_run_fails_after_the_grace_time(
    lab: Lab, setting_s: float | None, limits: str
) -> None:
    set_grace(lab, setting_s)
    worker = await lab.online("w1", want={"job": 1})
    task_id = await lab.submit(TAGGED + limits)
    for _ in range(5):
        await lab.sweep(10, alive=(worker,))
    assert (await lab.task(task_id)).status == "queued"
    await lab.sweep(30, alive=(worker,))
    task = await lab.task(task_id)
    assert (task.status, task.reason, task.attempts) == ("failed", "no_worker", 0)
    assert task.error == ("No registered worker has been able to run it for 60 s: unschedulable: w1 lacks the tag lab.")


async def test_without_a_grace_time_it_waits(lab: Lab) -> None:
    task_id = await lab.submit(TAGGED)
    await lab.sweep(300)
    assert (await lab.task(task_id)).status == "queued"


@pytest.mark.parametrize("case", ["busy", "offline", "registered meanwhile", "started by an autoscaler"])
async def test_a_worker_that_could_run_it_later_counts(lab: Lab, case: str) -> None:
    set_grace(lab, GRACE_S)
    alive = []
    if case in {"busy", "offline"}:
        worker = await lab.online("lab", want={"job": 1})
        if case == "busy":
            await lab.submit(TRAIN)
            await worker.start()
            alive.append(worker)
    if case == "started by an autoscaler":
        await demand.of(lab.core, lab.admin, WorkerPool("pool", tags=frozenset({"lab"})))
    task_id = await lab.submit(TAGGED)
    await lab.sweep(GRACE_S - 10, alive=tuple(alive))
    if case == "registered meanwhile":
        alive.append(await lab.online("lab", want={"job": 0}))
    for _ in range(6):
        await lab.sweep(20, alive=tuple(alive))
    assert (await lab.task(task_id)).status == "queued"


async def test_a_worker_that_left_long_ago_is_hidden_and_does_not_count(lab: Lab) -> None:
    set_grace(lab, GRACE_S)
    old = await lab.online("lab")
    await old.exchange(leaves=True)

    async def listed(*, hidden: bool = False) -> list[str]:
        return [each.id for each in (await workers.list_(lab.core, lab.admin, hidden=hidden)).items]

    lab.clock.advance(WEEK_S - 60)
    assert await listed() == ["lab"]
    lab.clock.advance(120)
    assert await listed() == []
    assert await listed(hidden=True) == ["lab"]
    assert (await workers.get(lab.core, lab.admin, "lab")).status == "offline"
    task_id = await lab.submit(TAGGED)
    await lab.sweep(10)
    await lab.sweep(GRACE_S + 10)
    assert (await lab.task(task_id)).reason == "no_worker"
    old.session = "s2"
    await old.register()
    assert await listed() == ["lab"]
