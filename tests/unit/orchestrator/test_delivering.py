"""An attempt whose job is over and whose results are on their way: it takes no room, and says what holds it up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.orchestrator.lab import ECHO, TRAIN, FakeWorker, Lab
from tests.unit.orchestrator.test_placing import GIB, asking, gpu, load, with_gpus
from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.preflight import explain
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.storage import result_files as results
from tunefleet.orchestrator.tasks import tasks


async def one_of(lab: Lab, document: str, **worker: Any) -> tuple[FakeWorker, str, str, str]:
    """Run one task on a worker with room for one; returns the worker, the task, its token, and a task that waits."""
    made = await with_gpus(lab, gpu(0), slots=1, **worker)
    first = await lab.submit(document)
    offer = await made.start()
    made.want = {"job": 0, "light": 8}
    second = await lab.submit(document)
    await made.exchange(load=load(1))
    assert await scheduler.run_once(lab.core) == 0
    return made, first, offer.token, second


async def test_a_delivery_takes_no_slot_no_device_and_no_memory(lab: Lab) -> None:
    document = asking("{gpu: {count: 1}, memory: 6Gi, cpu: 3}")
    worker, first, token, second = await one_of(lab, document)
    seen = lab.core.signals.version("placement")
    worker.want = {"job": 1, "light": 8}
    await worker.exchange(delivering={token: ""})
    assert lab.core.signals.version("placement") > seen, "somebody waits for the room"
    assert (await lab.task(first)).status == "running"
    said = {"delivering": {token: ""}}
    assert await scheduler.run_once(lab.core) == 1
    lab.clock.advance(2.0)
    (offer,) = (await worker.exchange(**said)).offers
    assert (offer.task_id, offer.gpus) == (second, ("GPU-0",))
    await worker.exchange(accepts=(offer.token,), **said)
    worker.holding.append(offer.token)
    worker.want = {"job": 0, "light": 8}
    third = await lab.submit(document)
    await worker.exchange(**said)
    assert await scheduler.run_once(lab.core) == 0, "the second one takes room"
    await worker.finish(token, result={"loss": 1.0}, delivering={token: ""})
    assert (await lab.task(first)).status == "completed"
    await worker.exchange(load=load(8))
    assert await scheduler.run_once(lab.core) == 0
    assert str((await lab.task(third)).why).startswith("waiting: ")


async def test_what_holds_a_delivery_up_is_shown_until_it_is_over_and_names_no_key(lab: Lab) -> None:
    worker, first, token, _ = await one_of(lab, TRAIN)
    assert (await lab.task(first)).why is None
    await worker.exchange(delivering={token: "it is delivered later: http://bob:s3cret@hooks/x answers 503."})
    told = "delivering: it is delivered later: http://**********@hooks/x answers 503."
    assert (await lab.task(first)).why == told
    assert (await explain.of_task(lab.core, lab.admin, first)).why == told
    assert [each.why for each in (await tasks.list_(lab.core, lab.admin, status="running")).items] == [told]
    await worker.exchange(delivering={token: ""})
    assert (await lab.task(first)).why == "delivering: the job has ended, and its results are being uploaded."
    await worker.exchange(delivering={"att-of-somebody.else": "nonsense"})
    assert (await lab.task(first)).why is None
    await worker.finish(token, result={}, delivering={token: "late"})
    assert (await lab.task(first)).why is None


async def test_a_server_that_was_started_anew_knows_it_after_the_next_exchange(lab: Lab) -> None:
    worker, first, token, second = await one_of(lab, TRAIN)
    worker.want = {"job": 1, "light": 8}
    lab.core.put_state(Fleet())  # all that it remembers of workers
    assert await scheduler.run_once(lab.core) == 0
    await worker.exchange(delivering={token: "the receiver is away."})
    assert (await lab.task(first)).why == "delivering: the receiver is away."
    assert await scheduler.run_once(lab.core) == 1
    assert (await lab.task(second)).status == "dispatched"


async def test_light_tasks_that_deliver_take_no_slot_either(lab: Lab) -> None:
    worker = lab.worker(want={"light": 1, "job": 0})
    await worker.register(slots={"light": 1, "job": 0})
    first = await lab.submit(ECHO)
    offer = await worker.start()
    second = await lab.submit(ECHO)
    await worker.exchange(want={"light": 1}, delivering={offer.token: "later."})
    assert await scheduler.run_once(lab.core) == 1
    assert [(await lab.task(each)).status for each in (first, second)] == ["running", "dispatched"]


async def test_the_figures_of_a_job_that_is_over_hold_up_nobody(lab: Lab) -> None:
    worker = await lab.online()
    await lab.submit(asking("{memory: 6Gi}"))
    offer = await worker.start()
    await worker.exchange(load=load(1))
    following = await lab.submit(asking("{memory: 6Gi}"))
    await worker.exchange(delivering={offer.token: ""})
    assert "free" not in str((await lab.task(following)).why), "the 1 GiB was measured while the job ran"
    assert await scheduler.run_once(lab.core) == 1
    await worker.exchange(load=load(1), delivering={offer.token: ""})
    view = lab.core.state(Fleet).presences["w1"]
    assert view.load is not None
    assert not view.outdated
    assert view.load.memory_free_bytes == GIB


async def test_a_result_that_could_not_be_delivered_is_there_all_the_same(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    error = "The result could not be delivered: it answers 503."
    await worker.finish(offer.token, "failed", "delivery_failed", error=error, result={"loss": 1.5})
    task = await lab.task(task_id)
    assert (task.status, task.reason, task.error) == ("failed", "delivery_failed", error)
    sign = results.signer(lab.core, "http://here")
    stored = await results.envelope(lab.core, lab.admin, task_id, sign)
    assert (stored["task_id"], stored["worker_id"], stored["result"]) == (task_id, "w1", {"loss": 1.5})
    names = {file.name for file in (await results.files(lab.core, lab.admin, task_id, sign)).files}
    assert {"results.json", "responses.json"} <= names


@pytest.mark.parametrize(("reason", "cancelled"), [("bug", False), ("delivery_failed", True)])
async def test_other_ends_leave_no_result(lab: Lab, reason: str, cancelled: bool) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    if cancelled:
        await tasks.cancel(lab.core, lab.admin, task_id)
    await worker.finish(offer.token, "failed", reason, error="no", result={"loss": 1.5})
    with pytest.raises(NotFoundError, match="no result"):
        await results.envelope(lab.core, lab.admin, task_id, results.signer(lab.core, "http://here"))
