"""Cordon, drain and uncordon: what was decided about a worker, as placement, the worker and people see it."""

from __future__ import annotations

import pytest

from tests.unit.orchestrator.lab import TRAIN, FakeWorker, Lab
from tunefleet.errors import ForbiddenError, NotFoundError
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.workers import worker_commands, workers
from tunefleet.schemas.worker_link import Finish, Offer


async def state(lab: Lab, worker: FakeWorker) -> tuple[str, bool, bool]:
    view = await workers.get(lab.core, lab.admin, worker.id)
    return view.status, view.cordoned, view.draining


async def why(lab: Lab, task_id: str) -> str:
    return (await lab.task(task_id)).why or ""


async def test_a_cordoned_worker_gets_nothing_new_until_it_is_uncordoned(lab: Lab) -> None:
    worker = await lab.online()
    await worker_commands.cordon(lab.core, lab.admin, worker.id)
    task_id = await lab.submit()
    assert await worker.offers() == ()
    assert "w1 is cordoned" in await why(lab, task_id)
    assert await state(lab, worker) == ("online", True, False)
    await worker_commands.uncordon(lab.core, lab.admin, worker.id)
    assert [offer.task_id for offer in await worker.offers()] == [task_id]


async def test_another_worker_takes_what_the_cordoned_one_does_not_get(lab: Lab) -> None:
    one, two = await lab.online("w1"), await lab.online("w2")
    await worker_commands.cordon(lab.core, lab.admin, one.id)
    task_id = await lab.submit()
    assert await one.offers() == ()
    assert [offer.task_id for offer in (await two.exchange()).offers] == [task_id]


async def test_a_drained_worker_is_told_finishes_and_is_offline_after_its_last_word(lab: Lab) -> None:
    worker = await lab.online()
    offer = await worker_runs(lab, worker)
    await worker_commands.drain(lab.core, lab.admin, worker.id)
    assert (await worker.exchange()).drain is True
    later = await lab.submit()
    worker.want = {"light": 0, "job": 0}
    assert (await worker.exchange(draining=True)).drain is None  # it knows
    assert "w1 is draining" in await why(lab, later)
    done = Finish(token=offer.token, outcome="completed", reason="finished")
    assert (await worker.exchange(draining=True, finishes=(done,))).finished == (offer.token,)
    await worker.exchange(draining=True, leaves=True)
    assert await state(lab, worker) == ("offline", True, False)
    assert (await lab.task(offer.task_id)).status == "completed"
    assert (await lab.task(later)).status == "queued"


async def worker_runs(lab: Lab, worker: FakeWorker) -> Offer:
    await lab.submit(TRAIN)
    return await worker.start()


async def test_what_a_leaving_worker_was_offered_meanwhile_is_placed_anew_and_counts_against_nobody(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit()
    assert len(await worker.offers()) == 1
    await worker_commands.drain(lab.core, lab.admin, worker.id)
    await worker.exchange(draining=True, leaves=True)
    other = await lab.online("w2")
    assert [offer.task_id for offer in await other.offers()] == [task_id]
    task = await lab.task(task_id)
    assert [attempt.reason for attempt in task.attempt_list] == ["not_accepted", None]


async def test_a_drain_survives_the_servers_restart_and_uncordon_takes_it_back(lab: Lab) -> None:
    worker = await lab.online()
    await worker_runs(lab, worker)
    await worker_commands.drain(lab.core, lab.admin, worker.id)
    settings, clock = lab.core.settings, lab.core.clock
    lab.core.close()
    lab.core = open_context(settings, clock=clock)
    try:
        assert (await worker.exchange()).drain is True
        await worker_commands.uncordon(lab.core, lab.admin, worker.id)
        assert (await worker.exchange(draining=True)).drain is False
        assert (await worker.exchange()).drain is None
        assert await state(lab, worker) == ("online", False, False)
    finally:
        lab.core.close()


async def test_a_worker_that_comes_back_after_a_drain_is_still_cordoned(lab: Lab) -> None:
    worker = await lab.online()
    await worker_commands.drain(lab.core, lab.admin, worker.id)
    await worker.exchange(draining=True, leaves=True)
    again = await lab.online("w1", session="s2")
    assert (await again.exchange()).drain is None
    await lab.submit()
    assert await again.offers() == ()


async def test_only_an_admin_decides_about_workers_and_only_about_those_that_there_are(lab: Lab) -> None:
    await lab.online()
    member = await lab.actor("ann", "member")
    with pytest.raises(ForbiddenError):
        await worker_commands.cordon(lab.core, member, "w1")
    with pytest.raises(NotFoundError):
        await worker_commands.drain(lab.core, lab.admin, "w9")
