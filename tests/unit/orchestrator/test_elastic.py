"""Elastic scaling on a server: who rests is passed by with a reason, and nobody waits for that."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.orchestrator.lab import TRAIN, FakeWorker, Lab
from tests.unit.orchestrator.test_quotas import member
from tunefleet.errors import ConflictError, ForbiddenError, NotFoundError
from tunefleet.orchestrator.access import projects
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.scheduling import autoscaling
from tunefleet.orchestrator.workers import worker_commands, workers
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import SubmitRequest
from tunefleet.schemas.projects import ProjectChange
from tunefleet.schemas.worker_link import Gpu

GPU = TRAIN.rstrip() + "\n  resources: {hardware: {gpu: {count: 1}}}\n"
A100 = (Gpu(index=0, name="A100", uuid="g", memory_total_bytes=40 << 30),)


async def gpu_worker(lab: Lab, id_: str) -> FakeWorker:
    worker = lab.worker(id_)
    await worker.register(gpus=A100)
    await worker.exchange()
    return worker


async def resting(lab: Lab) -> set[str]:
    found = (await workers.list_(lab.core, lab.admin)).items
    return {worker.id for worker in found if worker.elastic_disabled}


async def idle(lab: Lab, seconds: float, *alive: FakeWorker) -> None:
    """Let time pass as the server's loops see it."""
    for _ in range(round(seconds / 10)):
        lab.clock.advance(10.0)
        for worker in alive:
            await worker.exchange()
        await autoscaling.run_once(lab.core)


@asynccontextmanager
async def with_settings(lab: Lab, **changes: Any) -> AsyncIterator[None]:
    """Run a server on the lab's folder with other settings."""
    settings, clock = lab.core.settings, lab.core.clock
    lab.core.close()
    lab.core = open_context(settings.model_copy(update=changes), clock=clock)
    try:
        yield
    finally:
        lab.core.close()


async def test_fault_30_a_lone_gpu_task_does_not_wait_for_the_worker_that_rests(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tunefleet.orchestrator.scheduling.autoscaling")
    cpu, gpu = await lab.online("cpu"), await gpu_worker(lab, "gpu")
    await autoscaling.run_once(lab.core)
    await autoscaling.set_enabled(lab.core, lab.admin, "gpu", enabled=False)
    task_id = await lab.submit(GPU)
    assert await gpu.offers() == ()
    assert "gpu is on standby" in ((await lab.task(task_id)).why or "")
    # At the next look, though nothing is due, and it has only just been sent to rest.
    assert await autoscaling.run_once(lab.core) == 1
    assert await resting(lab) == set()
    assert caplog.messages == [
        "Worker gpu is on standby: requested by admin.",
        "Worker gpu is activated: no active worker can run a pending task.",
    ]
    assert [offer.task_id for offer in await gpu.offers()] == [task_id]
    assert (await cpu.exchange()).offers == ()


async def test_an_idle_worker_rests_and_comes_back_when_the_queue_grows(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tunefleet.orchestrator.scheduling.autoscaling")
    one, two = await lab.online("w1"), await lab.online("w2")
    await idle(lab, 50, one, two)
    assert await resting(lab) == set()
    await idle(lab, 40, one, two)
    assert await resting(lab) == {"w1"}
    # Both trainings could run on w2, one after the other: when the pause after a change is over, w1 helps.
    for _ in range(2):
        await lab.submit(TRAIN)
    await idle(lab, 70, one, two)
    assert await resting(lab) == set()
    rests, comes = caplog.messages
    assert re.fullmatch(r"Worker w1 is on standby: idle for \d+ s, and the queue length is 0\.", rests)
    assert comes == "Worker w1 is activated: the queue length is 2."


async def test_a_worker_that_works_or_is_cordoned_is_left_alone(lab: Lab) -> None:
    one, two, three = await lab.online("w1"), await lab.online("w2"), await lab.online("w3")
    await worker_commands.cordon(lab.core, lab.admin, "w3")
    await lab.submit(TRAIN)
    offers = await one.offers()
    busy, free = (one, "w2") if offers else (two, "w1")
    (offer,) = offers or (await two.exchange()).offers
    await busy.accept(offer.token)
    await idle(lab, 120, one, two, three)
    assert await resting(lab) == {free}


async def test_one_worker_never_rests(lab: Lab) -> None:
    worker = await lab.online()
    await idle(lab, 300, worker)
    assert await resting(lab) == set()


async def test_who_rests_is_stored_and_called_back_where_scaling_is_switched_off(lab: Lab) -> None:
    await lab.online("w1")
    await lab.online("w2")
    await autoscaling.set_enabled(lab.core, lab.admin, "w1", enabled=False)
    async with with_settings(lab):
        assert await resting(lab) == {"w1"}
    async with with_settings(lab, elastic=False):
        assert await autoscaling.run_once(lab.core) == 1
        assert await resting(lab) == set()
        with pytest.raises(ConflictError, match="TUNEFLEET_ELASTIC"):
            await autoscaling.set_enabled(lab.core, lab.admin, "w1", enabled=False)


async def test_only_an_admin_calls_workers_and_only_those_that_there_are(lab: Lab) -> None:
    await lab.online()
    with pytest.raises(NotFoundError):
        await autoscaling.set_enabled(lab.core, lab.admin, "w9", enabled=True)
    with pytest.raises(ForbiddenError):
        await autoscaling.set_enabled(lab.core, replace(lab.admin, role="member"), "w1", enabled=True)


async def test_what_waits_for_a_quota_calls_nobody_back(lab: Lab) -> None:
    red = await member(lab, "red", max_running=0)
    one, two = await lab.online("w1"), await lab.online("w2")
    await workflows.submit(lab.core, red, SubmitRequest(document=TRAIN))
    await autoscaling.set_enabled(lab.core, lab.admin, "w1", enabled=False)
    await idle(lab, 130, one, two)
    assert await resting(lab) == {"w1"}
    await projects.change(lab.core, lab.admin, "red", ProjectChange(max_running=1))
    await idle(lab, 40, one, two)
    assert await resting(lab) == set()


async def test_more_than_a_quota_lets_run_is_no_demand(lab: Lab) -> None:
    red = await member(lab, "red", max_running=1)
    fleet = [await lab.online(f"w{number}") for number in range(4)]
    for worker in fleet:
        await autoscaling.set_enabled(lab.core, lab.admin, worker.id, enabled=False)
    for _ in range(5):
        await workflows.submit(lab.core, red, SubmitRequest(document=TRAIN))
    await autoscaling.run_once(lab.core)
    # One since somebody must be able to run it, one since the queue is one long; not all four, as for five tasks.
    assert len(await resting(lab)) == 2
