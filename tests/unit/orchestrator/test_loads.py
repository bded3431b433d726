"""How busy workers were: kept through a restart of the server, thinned, forgotten after a day."""

from __future__ import annotations

import pytest

from tests.unit.orchestrator.lab import FakeWorker, Lab
from tunefleet.errors import ForbiddenError, NotFoundError
from tunefleet.orchestrator.telemetry import live_feed, worker_load
from tunefleet.orchestrator.workers import workers
from tunefleet.schemas.fleet import WorkerHistory
from tunefleet.schemas.worker_link import GpuLoad, Load


async def _busy(lab: Lab, worker: FakeWorker, times: int, every_s: float = 30.0) -> None:
    for number in range(times):
        gpu = GpuLoad(uuid="GPU-1", memory_free_bytes=number, utilisation_percent=50.0, temperature_c=61.0)
        await worker.exchange(load=Load(memory_free_bytes=number, disk_free_bytes=1, load_1m=0.5, gpus=(gpu,)))
        await worker_load.flush(lab.core)
        lab.clock.advance(every_s)


async def _history(lab: Lab, most: int = 500, since: float | None = None, until: float | None = None) -> WorkerHistory:
    return await worker_load.history(lab.core, lab.admin, "w1", since=since, until=until, most=most)


async def test_what_a_worker_told_is_kept_in_order(lab: Lab) -> None:
    worker = await lab.online()
    began = lab.clock.wall
    await _busy(lab, worker, 10)
    told = await _history(lab)
    assert [sample.load.memory_free_bytes for sample in told.samples] == list(range(10))
    assert told.samples[0].load.gpus[0].temperature_c == 61.0
    assert [sample.at.timestamp() - began for sample in told.samples] == [30.0 * number for number in range(10)]
    some = await _history(lab, since=began + 60, until=began + 120)
    assert [sample.load.memory_free_bytes for sample in some.samples] == [2, 3, 4]
    few = await _history(lab, most=4)
    assert (few.total, [sample.load.memory_free_bytes for sample in few.samples]) == (10, [0, 3, 6, 9])


async def test_what_is_told_live_has_the_time_that_is_stored(lab: Lab) -> None:
    worker = await lab.online()
    known: dict[str, Load] = {}
    live_feed.loads(lab.core, lab.admin, known)
    shown = []
    for number in range(3):
        lab.clock.advance(7.0001234)
        await worker.exchange(load=Load(memory_free_bytes=number, disk_free_bytes=1))
        lab.clock.advance(1.0)
        shown += live_feed.loads(lab.core, lab.admin, known)
        await worker_load.flush(lab.core)
        assert live_feed.loads(lab.core, lab.admin, known) == ()
    stored = (await _history(lab)).samples
    assert [(each.worker_id, each.at, each.load) for each in shown] == [("w1", each.at, each.load) for each in stored]
    assert len(shown) == 3


async def test_the_sweep_stores_it(lab: Lab) -> None:
    worker = await lab.online()
    await worker.exchange(load=Load(memory_free_bytes=7, disk_free_bytes=1))
    await lab.sweep(12.0, alive=(worker,))
    assert [sample.load.memory_free_bytes for sample in (await _history(lab)).samples] == [7]


async def test_it_is_forgotten_after_a_day_and_with_its_worker(lab: Lab) -> None:
    worker = await lab.online()
    await _busy(lab, worker, 3)
    lab.clock.advance(worker_load.KEPT_S - 60)
    await _busy(lab, worker, 1)
    assert [sample.load.memory_free_bytes for sample in (await _history(lab)).samples] == [1, 2, 0]
    await worker.exchange(leaves=True)
    await workers.remove(lab.core, lab.admin, "w1")
    await lab.online()
    assert (await _history(lab)).samples == ()


async def test_only_who_may_read_sees_it(lab: Lab) -> None:
    with pytest.raises(NotFoundError):
        await _history(lab)
    await lab.online()
    with pytest.raises(ForbiddenError):
        await worker_load.history(lab.core, lab.worker_key, "w1", since=None, until=None, most=1)
