"""Which ends lead to another try, what each costs, and how long it waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.orchestrator.lab import ECHO, TRAIN, Lab
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.lifecycle.task import OUTCOMES, RetryBudget, TaskReason, TaskStatus
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.preflight import explain as why_service
from tunefleet.orchestrator.scheduling import reaper, scheduler
from tunefleet.orchestrator.tasks.retry_decision import MAX_BACKOFF_S, MAX_LOST, finalize, reason_of
from tunefleet.orchestrator.telemetry import live_feed
from tunefleet.orchestrator.workers import workers

RETRY = TRAIN + "  retry: {max_attempts: 3, backoff_s: 10}\n"


def row(**changes: object) -> TaskRow:
    given = dict.fromkeys(TaskRow._fields)
    given |= {
        "id": "task-1", "status": "running", "max_attempts": 3, "backoff_s": 10.0, "failures": 0, "losses": 0,
        "retry_on": "bug,out_of_memory,network,killed,crashed,timeout,stalled", "desired": "run", "version": 1,
    }  # fmt: skip
    return TaskRow(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", [r for r in TaskReason if OUTCOMES[r].budget is RetryBudget.ATTEMPTS])
def test_a_failure_is_tried_again_with_a_growing_pause_until_the_attempts_are_used_up(reason: TaskReason) -> None:
    task, pauses = row(), []
    for _ in range(2):
        move = finalize(task, reason, 100.0)
        assert move.retry
        pauses.append(move.changes["ready_at"] - 100.0)
        task = task._replace(**{name: move.changes[name] for name in ("failures",)})
    assert pauses == [10.0, 20.0]
    assert not finalize(task, reason, 100.0).retry


@pytest.mark.parametrize("reason", [TaskReason.BAD_INPUT, TaskReason.DISK_FULL])
def test_what_cannot_get_better_is_not_tried_again(reason: TaskReason) -> None:
    assert not finalize(row(), reason, 0.0).retry


def test_only_the_reasons_that_the_user_named_are_tried_again() -> None:
    assert finalize(row(retry_on="network"), TaskReason.NETWORK, 0.0).retry
    assert not finalize(row(retry_on="network"), TaskReason.BUG, 0.0).retry
    assert not finalize(row(retry_on=""), TaskReason.NETWORK, 0.0).retry


@given(failures=st.integers(0, 99), backoff_s=st.floats(0, 1e6))
def test_a_pause_is_bounded(failures: int, backoff_s: float) -> None:
    move = finalize(row(failures=failures, backoff_s=backoff_s, max_attempts=1000), TaskReason.CRASHED, 50.0)
    assert move.retry
    assert 0.0 <= move.data["backoff_s"] <= MAX_BACKOFF_S


def test_a_lost_worker_costs_no_attempt_but_there_is_an_end_to_it() -> None:
    task = row(max_attempts=1)
    for losses in range(1, MAX_LOST + 1):
        move = finalize(task, TaskReason.WORKER_LOST, 0.0)
        assert move.retry
        assert "failures" not in move.changes
        assert move.changes["losses"] == losses
        task = task._replace(losses=losses)
    assert not finalize(task, TaskReason.WORKER_LOST, 0.0).retry


@pytest.mark.parametrize("reason", [TaskReason.FINISHED, TaskReason.CRASHED, TaskReason.WORKER_LOST, TaskReason.PAUSED])
def test_a_cancel_that_came_first_wins(reason: TaskReason) -> None:
    move = finalize(row(desired="cancel"), reason, 0.0, error="whatever")
    assert move.reason is TaskReason.CANCELLED_BY_USER
    assert not move.retry
    assert move.changes["error"] is None


@given(outcome=st.sampled_from(["completed", "failed", "cancelled", "paused"]), reason=st.text(max_size=30))
def test_an_unknown_reason_becomes_a_plain_one(outcome: str, reason: str) -> None:
    assert OUTCOMES[reason_of(outcome, reason)].status is TaskStatus(outcome)


@given(outcome=st.sampled_from(["completed", "failed", "cancelled", "paused"]), reason=st.sampled_from(TaskReason))
def test_a_worker_cannot_claim_what_does_not_go_with_the_outcome(outcome: str, reason: TaskReason) -> None:
    said = reason_of(outcome, reason.value)
    assert OUTCOMES[said].status is TaskStatus(outcome)
    assert said is not TaskReason.WORKER_LOST


async def test_a_failed_attempt_is_placed_again_after_its_pause(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(RETRY)
    offer = await worker.start()
    await worker.finish(offer.token, "failed", "crashed", error="It broke.", detail="Traceback …")
    task = await lab.task(task_id)
    assert (task.status, task.reason, task.error, task.detail) == ("queued", "crashed", "It broke.", "Traceback …")
    assert task.why is not None
    assert task.why == "backing off: attempt 2 of 3 starts in 10 s."
    assert await scheduler.run_once(lab.core) == 0
    seen = lab.core.signals.version("placement")
    await lab.sweep(11, alive=(worker,))
    assert lab.core.signals.version("placement") > seen
    second = await worker.start()
    assert second.attempt == 2
    assert (await lab.task(task_id)).error is None
    await worker.finish(second.token, result={})
    done = await lab.task(task_id)
    assert (done.status, done.detail) == ("completed", None)
    assert [(a.number, a.state, a.reason) for a in done.attempt_list] == [
        (1, "finished", "crashed"),
        (2, "finished", "finished"),
    ]
    kinds = [e.kind for e in await live_feed.events_after(lab.core, lab.admin, 0, task_id=task_id)]
    assert kinds.count("task.retrying") == 1


async def test_the_last_failure_is_final(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN + "  retry: {max_attempts: 1}\n")
    offer = await worker.start()
    await worker.finish(offer.token, "failed", "out_of_memory", error="No memory.")
    task = await lab.task(task_id)
    assert (task.status, task.reason, task.error) == ("failed", "out_of_memory", "No memory.")


async def test_a_void_offer_costs_no_retry_and_the_worker_a_pause(lab: Lab) -> None:
    worker = await lab.online(want={"job": 1})
    task_id = await lab.submit(RETRY)
    (offer,) = await worker.offers()
    await lab.sweep(lab.core.settings.accept_within_s + 2, alive=(worker,))
    task = await lab.task(task_id)
    assert (task.status, task.reason, task.attempts) == ("queued", "not_accepted", 1)
    assert (await worker.accept(offer.token)).drop == (offer.token,)
    assert task.why is not None
    assert "recently did not accept it" in task.why
    assert await scheduler.run_once(lab.core) == 0
    lab.clock.advance(6.0)
    await worker.exchange()
    assert await scheduler.run_once(lab.core) == 1


async def test_a_server_that_is_late_itself_takes_no_offer_back(lab: Lab) -> None:
    worker = await lab.online(want={"job": 1})
    task_id = await lab.submit(RETRY)
    (offer,) = await worker.offers()
    for _ in range(10):
        lab.clock.advance(3.0)
        await worker.exchange()
        await reaper.run_once(lab.core)
    assert (await lab.task(task_id)).status == "dispatched"
    assert (await worker.accept(offer.token)).accepted == (offer.token,)


async def test_another_worker_gets_the_task_meanwhile(lab: Lab) -> None:
    deaf = await lab.online("a")
    await lab.submit(RETRY)
    await deaf.offers()
    other = await lab.online("b", session="sb")
    await lab.sweep(lab.core.settings.accept_within_s + 2, alive=(deaf, other))
    assert await scheduler.run_once(lab.core) == 1
    lab.clock.advance(2.0)
    assert len((await other.exchange()).offers) == 1


async def test_after_three_void_offers_a_worker_is_cordoned_for_the_kind(lab: Lab) -> None:
    worker = await lab.online(want={"light": 8, "job": 1})
    for _ in range(3):
        await lab.submit()
        assert await worker.offers()
        await lab.sweep(lab.core.settings.accept_within_s + 2, alive=(worker,))
    kinds = [e.kind for e in await live_feed.events_after(lab.core, lab.admin, 0)]
    assert kinds.count("worker.cordoned") == 1
    fresh = await lab.submit()
    assert await worker.offers() == ()
    (verdict,) = (await why_service.of_task(lab.core, lab.admin, fresh)).workers
    assert verdict.reason is not None
    assert "did not accept" in verdict.reason
    # Another kind goes there still; and a worker that starts anew is tried anew.
    training = await lab.submit(TRAIN)
    assert [offer.task_id for offer in await worker.offers()] == [training]
    worker.session = "s2"
    await worker.register()
    assert fresh in {offer.task_id for offer in await worker.offers()}


async def test_offers_that_run_out_together_count_once(lab: Lab) -> None:
    worker = await lab.online()
    for _ in range(5):
        await lab.submit()
    assert len(await worker.offers()) == 5
    await lab.sweep(lab.core.settings.accept_within_s + 2, alive=(worker,))
    fresh = await lab.submit()
    assert fresh in {offer.task_id for offer in await worker.offers()}


async def test_an_accept_clears_the_strikes(lab: Lab) -> None:
    worker = await lab.online()
    for _ in range(2):
        await lab.submit()
    await worker.offers()
    await lab.sweep(lab.core.settings.accept_within_s + 2, alive=(worker,))
    await lab.submit()
    offer = await worker.start()
    await worker.finish(offer.token)
    await lab.submit()
    await worker.offers()
    await lab.sweep(lab.core.settings.accept_within_s + 2, alive=(worker,))
    assert "worker.cordoned" not in [e.kind for e in await live_feed.events_after(lab.core, lab.admin, 0)]


async def test_a_silent_worker_is_given_up_and_its_task_placed_anew(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(RETRY)
    offer = await worker.start()
    await lab.sweep(lab.core.settings.lost_after_s - 1)
    assert (await lab.task(task_id)).status == "running"
    await lab.sweep(3)
    task = await lab.task(task_id)
    assert (task.status, task.reason) == ("queued", "worker_lost")
    assert (await workers.get(lab.core, lab.admin, "w1")).status == "lost"
    with pytest.raises(Exception, match="revoked"):
        await api_keys.authenticate_attempt(lab.core, offer.token)
    # It was only away: it learns that its attempt is void, and is of use again.
    reply = await worker.exchange()
    assert reply.drop == (offer.token,)
    assert (await workers.get(lab.core, lab.admin, "w1")).status == "online"
    worker.holding.clear()
    second = await worker.start()
    assert second.attempt == 2


async def test_a_worker_that_renews_is_kept(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    await worker.start()
    for _ in range(10):
        await lab.sweep(lab.core.settings.lost_after_s / 3)
        await worker.exchange()
    assert (await lab.task(task_id)).status == "running"


async def test_nobody_is_given_up_for_time_that_the_leader_did_not_see(lab: Lab) -> None:

    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    await worker.start()
    await reaper.run_once(lab.core)
    lab.clock.advance(86_400.0)  # the process was stopped, or the machine asleep
    await reaper.run_once(lab.core)
    assert (await lab.task(task_id)).status == "running"
    await lab.sweep(lab.core.settings.lost_after_s + 1)
    assert (await lab.task(task_id)).status == "queued"


async def test_on_lost_wait_keeps_the_attempt(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN + "  on_lost: wait\n")
    offer = await worker.start()
    await lab.sweep(lab.core.settings.lost_after_s + 2)
    assert (await workers.get(lab.core, lab.admin, "w1")).status == "lost"
    assert (await lab.task(task_id)).status == "running"
    assert (await worker.finish(offer.token, result={"n": 1})).finished == (offer.token,)
    assert (await lab.task(task_id)).status == "completed"


async def test_a_poison_task_ends(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(RETRY)
    for number in range(MAX_LOST + 1):
        await worker.start()
        worker.session, worker.holding = f"after-{number}", []
        await worker.register()
    task = await lab.task(task_id)
    assert (task.status, task.reason, task.attempts) == ("failed", "worker_lost", MAX_LOST + 1)


async def test_time_limits_end_a_task(lab: Lab) -> None:
    worker = await lab.online()
    limits = "  limits: {max_runtime_s: 5, max_queue_s: 50}\n  retry: {max_attempts: 1}\n"
    running = await lab.submit(ECHO + limits)
    offer = await worker.start()
    waiting = await lab.submit(TRAIN + limits)
    worker.want = {"job": 0}
    await lab.sweep(7, alive=(worker,))
    task = await lab.task(running)
    assert (task.status, task.reason) == ("failed", "timeout")
    assert (await worker.exchange()).drop in {(offer.token,), ()}
    assert (await lab.task(waiting)).status == "queued"
    await lab.sweep(50, alive=(worker,))
    task = await lab.task(waiting)
    assert (task.status, task.reason, task.attempts) == ("failed", "timeout", 0)
    assert task.error == "Queued for longer than limits.max_queue_s (50 s): waiting: w1 is busy."


async def test_what_nobody_could_run_says_so_when_its_time_is_over(lab: Lab) -> None:
    worker = await lab.online()
    limits = "  limits: {max_queue_s: 2.5}\n  resources: {hardware: {memory: 10000GiB}}\n"
    task_id = await lab.submit(TRAIN + limits)
    why = (await lab.task(task_id)).why
    assert why is not None
    assert why.startswith("unschedulable: w1 has 8 GiB memory")
    await lab.sweep(4, alive=(worker,))
    task = await lab.task(task_id)
    assert (task.status, task.why) == ("failed", None)
    assert task.error == f"Queued for longer than limits.max_queue_s (2.5 s): {why}"


async def test_the_time_of_a_job_is_its_workers_affair(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(RETRY + "  limits: {max_runtime_s: 5}\n")
    offer = await worker.start()
    # It fetches inputs, makes way, delivers: none of that is running time, and only the worker knows of it.
    await lab.sweep(60, alive=(worker,))
    assert (await worker.exchange()).drop == ()
    assert (await lab.task(task_id)).status == "running"
    await worker.finish(offer.token)
    task = await lab.task(task_id)
    assert (task.status, task.attempts) == ("completed", 1)


async def test_last_seen_and_last_used_are_written_down_in_batches(lab: Lab) -> None:
    worker = await lab.online()
    await lab.sweep(12, alive=(worker,))
    assert (await workers.get(lab.core, lab.admin, "w1")).last_seen_at is not None
    used = {key.name: key.last_used_at for key in await api_keys.list_(lab.core, lab.admin)}
    assert used["admin"] is not None


async def test_after_a_restart_of_the_server_nobody_is_lost_before_his_time(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    lab.core.put_state(Fleet())  # what a new process knows: nothing
    lab.clock.advance(3600.0)
    await lab.sweep(lab.core.settings.lost_after_s - 1)
    assert (await lab.task(task_id)).status == "running"
    # It goes on without registering anew.
    assert (await worker.exchange()).drop == ()
    await lab.sweep(5)
    assert (await workers.get(lab.core, lab.admin, "w1")).status == "online"
    assert (await worker.finish(offer.token)).finished == (offer.token,)


async def test_a_worker_that_does_not_come_back_after_a_restart_is_given_up(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    lab.core.put_state(Fleet())
    await lab.sweep(lab.core.settings.lost_after_s + 2)
    assert (await lab.task(task_id)).reason == "worker_lost"
    assert (await workers.get(lab.core, lab.admin, "w1")).status == "lost"
    assert (await worker.exchange()).drop == (offer.token,)
    assert (await workers.get(lab.core, lab.admin, "w1")).status == "online"


async def test_a_removed_worker_gives_back_what_it_held(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    await worker.start()
    with pytest.raises(ConflictError, match="is online"):
        await workers.remove(lab.core, lab.admin, "w1")
    await lab.sweep(lab.core.settings.lost_after_s / 2 + 2)
    await workers.remove(lab.core, lab.admin, "w1")
    assert (await lab.task(task_id)).status == "queued"
    assert (await workers.list_(lab.core, lab.admin)).items == ()
    for call in (workers.get, workers.remove):
        with pytest.raises(NotFoundError):
            await call(lab.core, lab.admin, "w1")


async def test_workers_are_listed_by_page_and_status(lab: Lab) -> None:
    for name in ("a", "b", "c"):
        await lab.online(name, session=name)
    first = await workers.list_(lab.core, lab.admin, limit=2)
    assert [view.id for view in first.items] == ["a", "b"]
    rest = await workers.list_(lab.core, lab.admin, limit=2, cursor=first.next_cursor)
    assert [view.id for view in rest.items] == ["c"]
    assert (await workers.list_(lab.core, lab.admin, status="lost,unreachable")).items == ()
