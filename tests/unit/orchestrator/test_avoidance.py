"""Where a task is tried again after a failure that may lie with the machine."""

from __future__ import annotations

import pytest

from tests.unit.orchestrator.lab import TRAIN, FakeWorker, Lab
from tunefleet.orchestrator.preflight import explain as why_service
from tunefleet.orchestrator.scheduling import scheduler

RETRY = TRAIN + "  retry: {max_attempts: 3, backoff_s: 0}\n"
WAIT_S = 600.0


async def failed_on_a(lab: Lab, reason: str) -> tuple[str, FakeWorker]:
    """Submit a task and let it fail on the only worker, `a`."""
    worker = await lab.online("a", session="sa", want={"job": 1})
    task_id = await lab.submit(RETRY)
    offer = await worker.start()
    await worker.finish(offer.token, "failed", reason, error="It broke.")
    return task_id, worker


async def why(lab: Lab, task_id: str) -> str:
    return (await why_service.of_task(lab.core, lab.admin, task_id)).why or ""


@pytest.mark.parametrize("reason", ["out_of_memory", "disk_full", "machine_error", "network"])
async def test_another_worker_gets_the_task_even_if_it_is_busy_for_now(lab: Lab, reason: str) -> None:
    other = await lab.online("b", session="sb", want={"job": 1})
    await lab.submit(TRAIN)
    busy = await other.start()
    task_id, first = await failed_on_a(lab, reason)
    lab.clock.advance(20.0)
    await first.exchange()
    assert await first.offers() == ()
    words = reason.replace("_", " ")
    assert await why(lab, task_id) == (
        f"waiting: a failed it 22s ago ({words}) and gets it again in 9m 38s; b is busy."
    )
    (status,) = [
        each for each in (await why_service.of_task(lab.core, lab.admin, task_id)).workers if each.worker_id == "a"
    ]
    assert (status.verdict, status.reason) == ("waits", f"failed it 22s ago ({words}) and gets it again in 9m 38s")
    await other.finish(busy.token, result={})
    assert [offer.task_id for offer in await other.offers()] == [task_id]


@pytest.mark.parametrize(
    ("reason", "waits"), [("disk_full", True), ("machine_error", False), ("out_of_memory", False), ("network", False)]
)
async def test_the_only_able_worker_waits_only_for_what_does_not_pass(lab: Lab, reason: str, waits: bool) -> None:
    task_id, worker = await failed_on_a(lab, reason)
    offered = await worker.offers()
    assert bool(offered) is not waits
    if waits:
        assert "a failed it 2s ago" in await why(lab, task_id)
        await lab.sweep(WAIT_S + 1, alive=(worker,))
        await worker.exchange()
        assert [offer.task_id for offer in await worker.offers()] == [task_id]


@pytest.mark.parametrize("reason", ["bug", "killed", "crashed"])
async def test_a_failure_of_the_task_itself_excludes_no_worker(lab: Lab, reason: str) -> None:
    task_id, worker = await failed_on_a(lab, reason)
    await lab.online("b", session="sb", want={"job": 1})
    # `a` has its job folder.
    assert [offer.task_id for offer in await worker.offers()] == [task_id]


async def test_a_restarted_worker_is_tried_immediately(lab: Lab) -> None:
    task_id, worker = await failed_on_a(lab, "disk_full")
    assert await worker.offers() == ()
    lab.clock.advance(5.0)
    worker.session = "sa2"
    await worker.register()
    assert [offer.task_id for offer in await worker.offers()] == [task_id]


async def test_the_wait_keeps_to_the_retry_budget_and_can_be_switched_off(lab: Lab) -> None:
    lab.core.settings = lab.core.settings.model_copy(update={"failed_worker_wait_s": 0.0})
    task_id, worker = await failed_on_a(lab, "disk_full")
    for _ in range(2):
        offer = await worker.start()
        await worker.finish(offer.token, "failed", "disk_full", error="Full.")
    task = await lab.task(task_id)
    assert (task.status, task.reason, task.attempts) == ("failed", "disk_full", 3)
    assert await scheduler.run_once(lab.core) == 0
