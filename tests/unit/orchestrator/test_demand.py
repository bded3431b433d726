"""How many workers of a pool the queue would take."""

from __future__ import annotations

import pytest

from tests.unit.orchestrator.clusters.fake import ON_SLURM, FakeCluster
from tests.unit.orchestrator.lab import ECHO, TRAIN, Lab
from tests.unit.orchestrator.test_quotas import member, submit
from tunefleet.errors import ForbiddenError
from tunefleet.orchestrator.fleet.engines import Engines
from tunefleet.orchestrator.scheduling import demand
from tunefleet.orchestrator.scheduling.demand import WorkerPool
from tunefleet.orchestrator.workers import registration
from tunefleet.schemas.worker_link import ExecutorOffer, Gpu


def _needing(resources: str) -> str:
    return f"{TRAIN.rstrip()}\n  resources: {{{resources}}}\n"


async def _wanted(lab: Lab, sort: WorkerPool) -> int:
    return (await demand.of(lab.core, lab.admin, sort)).workers


async def test_what_an_engine_serves_is_left_out(lab: Lab) -> None:
    lab.core.put_state(Engines({"slurm": FakeCluster()}))
    await lab.submit(ON_SLURM)
    assert await _wanted(lab, WorkerPool("lab")) == 0
    await lab.submit(TRAIN)
    assert await _wanted(lab, WorkerPool("lab")) == 1


@pytest.mark.parametrize(
    ("resources", "able", "unable"),
    [
        ("hardware: {gpu: {count: 2}}", WorkerPool("lab", gpu_count=2), WorkerPool("lab", gpu_count=1)),
        ("hardware: {cpu: 8}", WorkerPool("lab", cpu=8), WorkerPool("lab", cpu=4)),
        ("hardware: {memory: 16Gi}", WorkerPool("lab", memory_bytes=16 << 30), WorkerPool("lab", memory_bytes=8 << 30)),
        ("tags: [fast]", WorkerPool("lab", tags=frozenset({"fast"})), WorkerPool("lab")),
        ("tags: [lab.0.box]", WorkerPool("lab"), WorkerPool("other")),
        ("hardware: {cpu: 8, memory: 16Gi}", WorkerPool("lab"), WorkerPool("lab", cpu=1)),
    ],
)
async def test_what_such_workers_could_not_run_is_left_out(
    lab: Lab, resources: str, able: WorkerPool, unable: WorkerPool
) -> None:
    await lab.submit(_needing(resources))
    assert (await _wanted(lab, able), await _wanted(lab, unable)) == (1, 0)


async def test_a_task_on_several_nodes_takes_as_many_workers(lab: Lab) -> None:
    await lab.submit(_needing("nodes: 3"))
    assert await _wanted(lab, WorkerPool("lab")) == 3


async def test_a_worker_of_the_pool_that_answers_knows_what_it_lacks(lab: Lab) -> None:
    await lab.submit(ECHO)
    await lab.submit(TRAIN)
    assert await _wanted(lab, WorkerPool("lab")) == 2
    stranger, mine = lab.worker("w1"), lab.worker("lab.0.box")
    await stranger.register(executors=(ExecutorOffer(kind="echo", slot_class="light"),))
    await stranger.exchange()
    assert await _wanted(lab, WorkerPool("lab")) == 2, "another's worker says nothing of these"
    await mine.register(executors=(ExecutorOffer(kind="echo", slot_class="light"),), slots={"light": 1})
    await mine.exchange()
    assert await _wanted(lab, WorkerPool("lab")) == 1


async def test_a_pool_is_not_started_again_for_what_its_workers_could_not_run(lab: Lab) -> None:
    await lab.submit(_needing("hardware: {gpu: {count: 1, type: a100}}"))
    sort = WorkerPool("lab", gpu_count=1)
    assert await _wanted(lab, sort) == 1, "nobody knows what GPUs they have"
    worker = lab.worker("lab.0.box")
    await worker.register(gpus=(Gpu(index=0, name="Tesla T4", uuid="g", memory_total_bytes=16 << 30),))
    await worker.exchange()
    assert await _wanted(lab, sort) == 0
    await lab.core.write(lambda connection: registration.leave(connection, worker.id, lab.clock.wall))
    assert await _wanted(lab, sort) == 0
    await lab.submit(_needing("hardware: {gpu: {count: 1, type: t4}}"))
    assert await _wanted(lab, sort) == 1
    lab.clock.advance(2 * 3600)
    assert await _wanted(lab, sort) == 2, "the pool may be of other machines by now"


async def test_what_is_to_be_tried_again_later_needs_no_worker_yet(lab: Lab) -> None:
    worker = await lab.online("lab.0.box")
    await lab.submit(TRAIN)
    assert await _wanted(lab, WorkerPool("lab")) == 1
    offer = await worker.start()
    await worker.finish(offer.token, "failed", "crashed")
    task = await lab.task(offer.task_id)
    assert (task.status, await _wanted(lab, WorkerPool("lab"))) == ("queued", 0)
    lab.clock.advance(3600)
    assert await _wanted(lab, WorkerPool("lab")) == 1


async def test_another_projects_workers_say_nothing(lab: Lab) -> None:
    red, blue = await member(lab, "red"), await member(lab, "blue")
    theirs = lab.worker("lab.0.box", actor=await member(lab, "blue", "worker"))
    await theirs.register(executors=(ExecutorOffer(kind="echo", slot_class="light"),), slots={"light": 1})
    await theirs.exchange()
    for who in (red, blue):
        await submit(lab, who, TRAIN)
    assert (await demand.of(lab.core, red, WorkerPool("lab"))).workers == 1, (
        "it is not told that there is such a worker"
    )
    assert (await demand.of(lab.core, blue, WorkerPool("lab"))).workers == 0


async def test_a_worker_may_not_ask(lab: Lab) -> None:
    with pytest.raises(ForbiddenError):
        await demand.of(lab.core, lab.worker_key, WorkerPool("lab"))
