"""Workers that fall silent: how soon their tasks are placed anew, and who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.unit.orchestrator.lab import TRAIN, FakeWorker, Lab
from tunefleet.db import Connection
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet.presence import Fleet, Presence
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.workers import exchange_transaction, workers

WAITS = TRAIN.replace("taskType: lora_sft", "taskType: lora_sft\n  on_lost: wait")


@pytest.mark.parametrize("lost_after_s", [1.0, 2.0, 30.0])
async def test_a_lost_workers_task_is_placed_anew_within_two_seconds_more(lab: Lab, lost_after_s: float) -> None:
    settings, clock = lab.core.settings, lab.core.clock
    lab.core.close()
    lab.core = open_context(settings.model_copy(update={"lost_after_s": lost_after_s}), clock=clock)
    try:
        worker = await lab.online("w1")
        task_id = await lab.submit(TRAIN)
        offer = await worker.start()
        other = await lab.online("w2")
        await lab.sweep(lost_after_s - 1, alive=(other,))
        assert (await lab.task(task_id)).status == "running"
        await lab.sweep(2, alive=(other,))
        await scheduler.run_once(lab.core)
        (again,) = (await other.exchange()).offers
        assert (again.task_id, again.attempt) == (offer.task_id, 2)
    finally:
        lab.core.close()


async def test_a_task_that_waits_for_its_worker_stays_there_and_ends_when_it_is_back(lab: Lab) -> None:
    worker, other = await lab.online("w1"), await lab.online("w2")
    task_id = await lab.submit(WAITS)
    offers = await worker.offers()
    holder, idle = (worker, other) if offers else (other, worker)
    (offer,) = offers or (await other.exchange()).offers
    await holder.accept(offer.token)
    await lab.sweep(120, alive=(idle,))
    assert (await lab.task(task_id)).status == "running"
    assert await idle.offers() == ()
    await holder.finish(offer.token)
    assert (await lab.task(task_id)).status == "completed"


async def test_fault_06_the_only_worker_gets_the_task_again_that_it_had_lost(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    lost = await worker.start()
    await lab.sweep(31)
    assert (await lab.task(task_id)).status == "queued"
    back: FakeWorker = await lab.online(session="s2")
    again = await back.start()
    assert (again.task_id, again.attempt) == (task_id, 2)
    # What the lost attempt says late changes nothing.
    reply = await back.exchange(holding=(lost.token, again.token))
    assert reply.drop == (lost.token,)
    await back.finish(lost.token, "failed", "crashed", error="too late")
    assert (await lab.task(task_id)).status == "running"


async def test_who_has_spoken_is_not_lost_while_the_server_works_off_what_it_said(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    write, free = ServerContext.write, asyncio.Event()

    async def late(core: ServerContext, operation: Callable[[Connection], Any]) -> Any:
        if isinstance(operation, partial) and operation.func is exchange_transaction.apply:
            await free.wait()
        return await write(core, operation)

    monkeypatch.setattr(ServerContext, "write", late)
    told = asyncio.create_task(worker.finish(offer.token))
    await asyncio.sleep(0)
    await lab.sweep(120)
    assert (await lab.task(task_id)).status == "running", "the server is late, not the worker"
    free.set()
    await told
    done = await lab.task(task_id)
    assert (done.status, done.attempts) == ("completed", 1)
    await lab.sweep(31)
    assert (await workers.get(lab.core, lab.admin, "w1")).status == "lost", "and whoever says nothing more is"


async def test_what_is_broken_off_is_not_waited_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await lab.online()
    broken = asyncio.Event()

    async def never(*_: object) -> Any:
        if broken.is_set():
            raise RuntimeError("broken")
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(ServerContext, "write", never)
        for told in (worker.register(), worker.exchange(draining=True)):
            asked = asyncio.create_task(told)
            await asyncio.sleep(0)
            assert dict(lab.core.state(Fleet).in_progress) == {"w1": 1}
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert not lab.core.state(Fleet).in_progress
        broken.set()
        with pytest.raises(RuntimeError):
            await worker.register()
    assert not lab.core.state(Fleet).in_progress
    await lab.sweep(31)
    assert (await workers.get(lab.core, lab.admin, "w1")).status == "lost"


async def test_who_speaks_while_its_loss_waits_to_be_stored_keeps_its_task(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    await lab.sweep(29)
    write = ServerContext.write

    async def speak_before(core: ServerContext, operation: Callable[[Connection], Any]) -> Any:
        if isinstance(operation, partial):  # what was found, not what is written down now and then
            monkeypatch.setattr(ServerContext, "write", write)
            await worker.exchange()
        return await write(core, operation)

    monkeypatch.setattr(ServerContext, "write", speak_before)
    await lab.sweep(2)
    assert ServerContext.write is write, "it was found silent"
    assert (await lab.task(task_id)).status == "running"
    assert (await worker.finish(offer.token)).finished == (offer.token,)
    assert (await lab.task(task_id)).status == "completed"


async def test_who_speaks_just_when_it_is_given_up_is_online_at_its_next_word(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await lab.online()
    await lab.sweep(29)
    write, stored, told = ServerContext.write, asyncio.Event(), asyncio.Event()
    spoken: list[asyncio.Task[Any]] = []

    async def answered_late(core: ServerContext, operation: Callable[[Connection], Any]) -> Any:
        found = await write(core, operation)
        stored.set()
        await told.wait()
        return found

    async def lost_first(core: ServerContext, operation: Callable[[Connection], Any]) -> Any:
        if not isinstance(operation, partial):
            return await write(core, operation)
        monkeypatch.setattr(ServerContext, "write", answered_late)
        found = await write(core, operation)
        spoken.append(asyncio.create_task(worker.exchange(discarded=("task-gone",))))
        await stored.wait()
        monkeypatch.setattr(ServerContext, "write", write)
        return found

    monkeypatch.setattr(ServerContext, "write", lost_first)
    await lab.sweep(2)
    told.set()
    await spoken[0]
    assert (await workers.get(lab.core, lab.admin, worker.id)).status == "lost"
    await worker.exchange()
    assert (await workers.get(lab.core, lab.admin, worker.id)).status == "online"


def test_what_workers_were_given_is_forgotten_when_it_is_old() -> None:
    fleet = Fleet()
    fleet.give("a", ["m", "d"], 10.0)
    fleet.give("a", ["m"], 20.0)
    fleet.give("b", ["m"], 10.0)
    fleet.give("c", [], 20.0)
    assert fleet.warm_since(5.0) == {"a": {"m", "d"}, "b": {"m"}}
    assert fleet.warm_since(10.0) == {"a": {"m"}}
    assert fleet.warm == {"a": {"m": 20.0}}


def test_who_was_heard_of_since_the_last_look_is_not_silent() -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.renew(name, Presence(name), 0.0)
    for elapsed_s in (0.0, 2.0, 2.0):
        fleet.watch(["a", "b"], elapsed_s)
    assert fleet.silent(4.0) == {"a", "b"}
    fleet.renew("a", fleet.presences["a"], 4.0)
    assert fleet.silent(4.0) == {"b"}
    assert fleet.silent(5.0) == set()
