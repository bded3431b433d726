"""How many workers of a pool the queue would take."""

from __future__ import annotations

import pytest

from tests.unit.services.clusters.fake import ON_SLURM, FakeCluster
from tests.unit.services.lab import ECHO, TRAIN, Lab
from tunefleet.errors import ForbiddenError
from tunefleet.services import demand
from tunefleet.services.clusters.engines import Engines
from tunefleet.services.demand import Sort
from tunefleet.wire.link import ExecutorOffer


def _needing(resources: str) -> str:
    return f"{TRAIN.rstrip()}\n  resources: {{{resources}}}\n"


async def _wanted(lab: Lab, sort: Sort) -> int:
    return (await demand.of(lab.core, lab.admin, sort)).workers


async def test_what_an_engine_serves_is_left_out(lab: Lab) -> None:
    lab.core.engines = Engines({"slurm": FakeCluster()})
    await lab.submit(ON_SLURM)
    assert await _wanted(lab, Sort("lab")) == 0
    await lab.submit(TRAIN)
    assert await _wanted(lab, Sort("lab")) == 1


@pytest.mark.parametrize(
    ("resources", "able", "unable"),
    [
        ("hardware: {gpu: {count: 2}}", Sort("lab", gpu_count=2), Sort("lab", gpu_count=1)),
        ("hardware: {cpu: 8}", Sort("lab", cpu=8), Sort("lab", cpu=4)),
        ("hardware: {memory: 16Gi}", Sort("lab", memory_bytes=16 << 30), Sort("lab", memory_bytes=8 << 30)),
        ("tags: [fast]", Sort("lab", tags=frozenset({"fast"})), Sort("lab")),
        ("tags: [lab.0.box]", Sort("lab"), Sort("other")),
        ("hardware: {cpu: 8, memory: 16Gi}", Sort("lab"), Sort("lab", cpu=1)),
    ],
)
async def test_what_such_workers_could_not_run_is_left_out(lab: Lab, resources: str, able: Sort, unable: Sort) -> None:
    await lab.submit(_needing(resources))
    assert (await _wanted(lab, able), await _wanted(lab, unable)) == (1, 0)


async def test_a_task_on_several_nodes_takes_as_many_workers(lab: Lab) -> None:
    await lab.submit(_needing("nodes: 3"))
    assert await _wanted(lab, Sort("lab")) == 3


async def test_a_worker_of_the_pool_that_answers_knows_what_it_lacks(lab: Lab) -> None:
    await lab.submit(ECHO)
    await lab.submit(TRAIN)
    assert await _wanted(lab, Sort("lab")) == 2
    stranger, mine = lab.worker("w1"), lab.worker("lab.0.box")
    await stranger.register(executors=(ExecutorOffer(kind="echo", slot_class="light"),))
    await stranger.exchange()
    assert await _wanted(lab, Sort("lab")) == 2, "another's worker says nothing of these"
    await mine.register(executors=(ExecutorOffer(kind="echo", slot_class="light"),), slots={"light": 1})
    await mine.exchange()
    assert await _wanted(lab, Sort("lab")) == 1


async def test_a_worker_may_not_ask(lab: Lab) -> None:
    with pytest.raises(ForbiddenError):
        await demand.of(lab.core, lab.worker_key, Sort("lab"))
