"""Offer, accept, finish: every step idempotent, the first commit wins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.orchestrator.lab import ECHO, TRAIN, Lab
from tunefleet.errors import AuthError, ConflictError, ForbiddenError, NotFoundError
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.telemetry import live_feed
from tunefleet.orchestrator.workers import workers
from tunefleet.schemas.api import EventView
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, Finish, Reached


async def test_a_task_goes_from_submit_to_result(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit()
    (offer,) = await worker.offers()
    assert (offer.task_id, offer.attempt, offer.slot_class, offer.kind) == (task_id, 1, "light", "echo")
    assert offer.spec["data"] == {"type": "list", "items": ["a", "b"]}
    assert (await lab.task(task_id)).status == "dispatched"
    assert (await worker.accept(offer.token)).accepted == (offer.token,)
    assert (await lab.task(task_id)).status == "running"
    reply = await worker.finish(offer.token, result={"items": ["a", "b"]})
    assert reply.finished == (offer.token,)
    task = await lab.task(task_id)
    assert (task.status, task.reason, task.attempts) == ("completed", "finished", 1)
    assert task.result is not None
    assert set(task.result) == {"task_id", "worker_id", "metadata", "received_at", "result"}
    assert task.result["task_id"] == task_id
    assert task.result["worker_id"] == "w1"
    assert task.result["result"] == {"items": ["a", "b"]}
    assert [attempt.state for attempt in task.attempt_list] == ["finished"]


@pytest.mark.parametrize(
    ("ahead_s", "told"), [(0.0, None), (9.0, None), (-9.0, None), (63.04, 63.0), (-3600.0, -3600.0), (None, None)]
)
async def test_a_clock_that_is_off_is_told_to_the_worker_and_shown(
    lab: Lab, ahead_s: float | None, told: float | None
) -> None:
    worker = await lab.online()
    assert (await worker.register()).clock_ahead_s is None
    sent_at = None if ahead_s is None else lab.clock.wall + ahead_s
    assert (await worker.register(sent_at=sent_at)).clock_ahead_s == told
    assert (await workers.get(lab.core, lab.admin, "w1")).capabilities.clock_ahead_s == told
    # It is the server that says so.
    await worker.register(clock_ahead_s=99.0)
    assert (await workers.get(lab.core, lab.admin, "w1")).capabilities.clock_ahead_s is None


async def test_accept_and_finish_may_be_said_again(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit()
    offer = await worker.start()
    assert (await worker.accept(offer.token)).accepted == (offer.token,)
    assert (await worker.finish(offer.token, result={"n": 1})).finished == (offer.token,)
    # The acknowledgement was lost: the same again, and even with another result, changes nothing.
    assert (await worker.finish(offer.token, result={"n": 2})).finished == (offer.token,)
    task = await lab.task(task_id)
    assert task.result is not None
    assert task.result["result"] == {"n": 1}
    kinds = [event.kind for event in await _events(lab, task_id)]
    assert kinds == ["task.queued", "task.offered", "task.started", "task.completed"]


async def test_a_finish_implies_the_accept(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit()
    (offer,) = await worker.offers()
    assert (await worker.finish(offer.token, result={})).finished == (offer.token,)
    assert (await lab.task(task_id)).status == "completed"
    assert [e.kind for e in await _events(lab, task_id)][-2:] == ["task.started", "task.completed"]


async def test_accept_and_finish_of_one_exchange_are_one_after_the_other(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit()
    (offer,) = await worker.offers()
    finish = Finish(token=offer.token, outcome="completed", reason="finished")
    reply = await worker.exchange(accepts=(offer.token,), finishes=(finish,))
    assert reply.accepted == reply.finished == (offer.token,)
    assert (await lab.task(task_id)).status == "completed"


async def test_a_token_that_the_server_never_made_is_forgotten_or_dropped(lab: Lab) -> None:
    worker = await lab.online()
    wrong = "att-000000000000." + "0" * 32
    finish = Finish(token=wrong, outcome="completed", reason="finished")
    reply = await worker.exchange(holding=(wrong,), accepts=(wrong,), finishes=(finish,))
    assert reply.finished == (wrong,)
    assert reply.accepted == ()
    assert (await worker.exchange(holding=(wrong,))).drop in {(wrong,), ()}
    with pytest.raises(AuthError):
        await api_keys.authenticate_attempt(lab.core, wrong)


async def test_a_token_of_another_worker_changes_nothing(lab: Lab) -> None:
    first = await lab.online("w1")
    task_id = await lab.submit()
    offer = await first.start()
    second = await lab.online("w2", session="s2")
    reply = await second.exchange(holding=(offer.token,), accepts=(offer.token,))
    assert reply.accepted == ()
    assert reply.drop == (offer.token,)
    await second.finish(offer.token)
    assert (await lab.task(task_id)).status == "running"


async def test_offers_are_repeated_until_they_are_accepted_but_do_not_make_the_worker_spin(lab: Lab) -> None:
    worker = await lab.online()
    await lab.submit()
    assert len(await worker.offers()) == 1
    # Just told: it is repeated, but does not cut a long poll short.
    before = lab.clock.monotonic
    pending = asyncio.create_task(worker.exchange(wait_s=5.0))
    await asyncio.sleep(0.05)
    assert not pending.done()
    lab.clock.advance(6.0)
    lab.core.signals.notify("worker:w1")
    assert len((await pending).offers) == 1
    assert lab.clock.monotonic - before == 6.0


async def test_a_newer_exchange_releases_the_older_one(lab: Lab) -> None:
    worker = await lab.online()
    older = asyncio.create_task(worker.exchange(wait_s=5.0))
    await asyncio.sleep(0.02)
    newer = asyncio.create_task(worker.exchange(wait_s=5.0))
    assert await asyncio.wait_for(older, 2) == ExchangeReply()
    await lab.submit()
    await scheduler.run_once(lab.core)
    assert len((await asyncio.wait_for(newer, 2)).offers) == 1


async def test_a_long_poll_ends_when_the_server_does(lab: Lab) -> None:
    worker = await lab.online()
    waiting = asyncio.create_task(worker.exchange(wait_s=5.0))
    await asyncio.sleep(0.02)
    lab.core.signals.close()
    assert await asyncio.wait_for(waiting, 2) == ExchangeReply()


async def test_an_exchange_is_held_for_a_third_of_the_patience_at_most(lab: Lab) -> None:
    worker = await lab.online()
    waiting = asyncio.create_task(worker.exchange(wait_s=3600.0))
    for _ in range(100):  # on a busy machine it begins to wait only after the first of them
        lab.clock.advance(lab.core.settings.lost_after_s / 3 + 0.1)
        lab.core.signals.notify("worker:w1")
        if (await asyncio.wait([waiting], timeout=0.2))[0]:
            break
    assert await asyncio.wait_for(waiting, 2) == ExchangeReply()


async def test_no_more_is_offered_than_the_worker_wants(lab: Lab) -> None:
    worker = await lab.online(want={"light": 2})
    for _ in range(5):
        await lab.submit()
    first = await worker.offers()
    assert len(first) == 2
    # Placed again before the worker has answered: the open offers count.
    assert await scheduler.run_once(lab.core) == 0
    await worker.accept(*(offer.token for offer in first))
    assert len(await worker.offers()) == 2
    worker.want = {"light": 0}
    assert len(await worker.offers()) == 2  # those that are open; no new ones


async def test_a_cancel_of_a_running_task_is_repeated_until_the_worker_has_reached_it(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    task = await tasks.cancel(lab.core, lab.admin, task_id)
    assert task.status == "running"
    assert task.why is not None
    assert "cancelling" in task.why
    (wish,) = (await worker.exchange()).desired
    assert (wish.token, wish.action) == (offer.token, "cancel")
    lab.clock.advance(2.0)
    assert len((await worker.exchange()).desired) == 1
    reached = Reached(token=offer.token, generation=wish.generation)
    assert (await worker.exchange(reached=(reached,))).desired == ()
    await tasks.cancel(lab.core, lab.admin, task_id)  # once more: nothing new
    assert (await worker.exchange()).desired == ()
    await worker.finish(offer.token, "cancelled", "aborted")
    assert (await lab.task(task_id)).status == "cancelled"


async def test_cancel_against_finish_the_first_commit_wins(lab: Lab) -> None:
    worker = await lab.online()
    first, second = await lab.submit(), await lab.submit()
    offers = {offer.task_id: offer for offer in await worker.offers()}
    await worker.accept(*(offer.token for offer in offers.values()))
    await tasks.cancel(lab.core, lab.admin, first)
    await worker.finish(offers[first].token, result={"late": True})
    task = await lab.task(first)
    assert (task.status, task.reason, task.result) == ("cancelled", "cancelled_by_user", None)
    await worker.finish(offers[second].token, result={"early": True})
    with pytest.raises(ConflictError):
        await tasks.cancel(lab.core, lab.admin, second)
    assert (await lab.task(second)).status == "completed"


async def test_a_cancel_of_an_offer_voids_it(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit()
    (offer,) = await worker.offers()
    assert (await tasks.cancel(lab.core, lab.admin, task_id)).status == "cancelled"
    reply = await worker.exchange(accepts=(offer.token,))
    assert reply.accepted == ()
    assert reply.drop == (offer.token,)
    with pytest.raises(AuthError, match="revoked"):
        await api_keys.authenticate_attempt(lab.core, offer.token)


async def test_a_cancel_of_a_task_on_an_unreachable_worker_is_final_at_once(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    await lab.sweep(lab.core.settings.lost_after_s / 2 + 2)
    assert (await workers.get(lab.core, lab.admin, "w1")).status == "unreachable"
    assert (await tasks.cancel(lab.core, lab.admin, task_id)).status == "cancelled"
    # It comes back with a result: nobody wants it any more.
    reply = await worker.exchange()
    assert reply.drop == (offer.token,)
    assert (await worker.finish(offer.token, result={"n": 1})).finished == (offer.token,)
    assert (await lab.task(task_id)).status == "cancelled"


async def test_a_pending_cancel_becomes_final_when_the_worker_falls_silent(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    await worker.start()
    await tasks.cancel(lab.core, lab.admin, task_id)
    await lab.sweep(lab.core.settings.lost_after_s / 2 + 2)
    assert (await lab.task(task_id)).status == "cancelled"


async def test_a_finish_waits_for_the_journal(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    records = [{"type": "launch", "launch": "l1"}, {"type": "metric", "step": 1, "values": {"loss": 1.0}}]
    await lab.journal(offer.token, "l1", records[:1])
    reply = await worker.finish(offer.token, cursors={"l1": 2})
    assert reply.finished == ()
    assert [(late.launch, late.cursor) for late in reply.behind] == [("l1", 1)]
    assert (await lab.task(task_id)).status == "running"
    await lab.journal(offer.token, "l1", records[1:], from_seq=1)
    assert (await worker.finish(offer.token, cursors={"l1": 2})).finished == (offer.token,)
    assert (await lab.task(task_id)).status == "completed"


async def test_a_session_fences_the_one_before_it(lab: Lab) -> None:
    old = await lab.online(session="old")
    waiting = asyncio.create_task(old.exchange(wait_s=5.0))
    await asyncio.sleep(0.02)
    new = lab.worker(session="new")
    await new.register()
    assert await asyncio.wait_for(waiting, 2) == ExchangeReply()
    with pytest.raises(ConflictError, match="took over"):
        await old.exchange()
    await new.exchange()


async def test_a_second_state_folder_is_refused_while_the_first_lives(lab: Lab) -> None:
    await lab.online()
    second = lab.worker(session="s2", state_id="elsewhere")
    with pytest.raises(ConflictError, match="in use"):
        await second.register()
    await lab.sweep(lab.core.settings.lost_after_s + 1)
    await second.register()
    assert (await workers.get(lab.core, lab.admin, "w1")).status == "online"


async def test_a_worker_id_belongs_to_the_key_that_registered_it(lab: Lab) -> None:
    await lab.online()
    other = await lab.actor("other", "worker")
    thief = lab.worker(session="s2", actor=other)
    with pytest.raises(ForbiddenError, match="another key"):
        await thief.register()
    with pytest.raises(ForbiddenError):
        await lab.worker(actor=await lab.actor("bob", "member")).register()


async def test_an_unknown_worker_must_register(lab: Lab) -> None:
    with pytest.raises(NotFoundError, match="not registered"):
        await lab.worker("stranger").exchange()


async def test_registering_says_what_is_still_good(lab: Lab) -> None:
    worker = await lab.online()
    kept, gone = await lab.submit(), await lab.submit()
    offers = {offer.task_id: offer.token for offer in await worker.offers()}
    await worker.accept(*offers.values())
    await tasks.cancel(lab.core, lab.admin, gone)
    await worker.finish(offers[gone], "cancelled", "aborted")
    worker.session, worker.holding = "s2", [offers[kept], offers[gone], "nonsense"]
    reply = await worker.register()
    assert reply.keep == (offers[kept],)
    assert set(reply.drop) == {offers[gone], "nonsense"}
    assert reply.hold_s == pytest.approx(lab.core.settings.lost_after_s / 3)


async def test_an_accepted_attempt_that_its_worker_does_not_hold_is_lost_at_once(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit()
    await worker.start()
    worker.session, worker.holding = "s2", []
    await worker.register()
    task = await lab.task(task_id)
    assert (task.status, task.reason) == ("queued", "worker_lost")
    (offer,) = await worker.offers()
    assert offer.attempt == 2


async def test_an_offer_outlives_a_restart_of_its_worker(lab: Lab) -> None:
    worker = await lab.online()
    await lab.submit()
    (offer,) = await worker.offers()
    worker.session = "s2"
    await worker.register()
    assert [again.token for again in (await worker.exchange()).offers] == [offer.token]


async def test_exchanges_of_many_tasks_are_one_operation(lab: Lab) -> None:
    worker = await lab.online(want={"light": 8})
    ids = [await lab.submit(ECHO) for _ in range(8)]
    offers = await worker.offers()
    assert {offer.task_id for offer in offers} == set(ids)
    await worker.accept(*(offer.token for offer in offers))
    finishes = tuple(Finish(token=offer.token, outcome="completed", reason="finished") for offer in offers)
    reply = await worker.exchange(finishes=finishes)
    assert set(reply.finished) == {offer.token for offer in offers}
    assert {(await lab.task(id_)).status for id_ in ids} == {"completed"}


async def _events(lab: Lab, task_id: str) -> list[EventView]:
    return await live_feed.events_after(lab.core, lab.admin, 0, task_id=task_id, limit=1000)


async def test_what_a_worker_sent_before_it_left_does_not_bring_it_back(lab: Lab) -> None:
    """Two connections carry what it says: the last word may be overtaken. Its id is free for whoever starts next."""
    first = await lab.online()
    await first.exchange(leaves=True)
    with pytest.raises(ConflictError, match="took over"):
        await first.exchange()
    assert await first.exchange(leaves=True) == ExchangeReply(), "it may say so again"
    assert (await workers.get(lab.core, lab.admin, "w1")).status == "offline"
    second = lab.worker(session="s2", state_id="elsewhere")
    await second.register()
    await second.exchange()
    first_again = lab.worker()
    assert await first_again.exchange(leaves=True) == ExchangeReply()
    await second.exchange()


@pytest.mark.parametrize(
    "said",
    [
        {"stalled": {"t": 1e300}}, {"stalled": {"t": -1.0}}, {"want": {"job": 1 << 70}}, {"wait_s": "nan"},
        {"reached": [{"token": "t", "generation": 1 << 70}]},
        {"outcomes": [{"command_id": "c", "state": "applied", "step": 1 << 70}]},
        {"finishes": [{"token": "t", "outcome": "completed", "reason": "finished", "cursors": {"l": 1 << 70}}]},
        {"load": {"memory_free_bytes": 1, "disk_free_bytes": 1, "gpus": [{"uuid": "g", "power_w": "inf"}]}},
    ],
)  # fmt: skip
def test_numbers_that_no_store_or_calendar_has_are_no_message(said: dict[str, Any]) -> None:
    whole = {"worker_id": "w1", "session": "s1"}
    assert ExchangeRequest.model_validate(whole)
    with pytest.raises(ValidationError):
        ExchangeRequest.model_validate(whole | said)
