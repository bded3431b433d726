"""The contract's faults, shown gone on a fleet that meets in a Redis."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.transport.conftest import ECHO, registration
from tests.integration.redis.process import RedisProcess
from tests.integration.redis.site import Hand, Site, until
from tunefleet.errors import ConflictError, TunefleetError, UnreachableError
from tunefleet.schemas.worker_link import Capabilities, ExchangeReply, ExchangeRequest, ExecutorOffer

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]
Start = Callable[..., Site]
Redises = Callable[..., RedisProcess]
TRAIN = """apiVersion: tunefleet/v1
metadata: {name: train}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {prompts: [one, two]}
"""


def said_by(hand: Hand, **request: Any) -> dict[str, str]:
    """The entry that carries an exchange of a worker, to be written by the test itself."""
    plain = {"worker_id": hand.worker_id, "session": "s1", "want": {"light": 8}}
    body = ExchangeRequest.model_validate(plain | request).model_dump_json()
    head = {"type": "LINK_EXCHANGE", "worker_id": hand.worker_id, "session": "s1"}
    return {**head, "id": "by-hand", "patience_s": "60", "body": body}


def in_thread(call: Callable[[], ExchangeReply]) -> tuple[threading.Thread, list[ExchangeReply | TunefleetError]]:
    told: list[ExchangeReply | TunefleetError] = []

    def run() -> None:
        try:
            told.append(call())
        except TunefleetError as error:
            told.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, told


def test_fault_01_a_dispatch_that_is_lost_is_made_again(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis, accept_within_s=60)
    hand = here.hand()
    with redis.client as client:
        # Nobody waits for the answer to this exchange: the dispatch goes nowhere.
        client.xadd("tasks.events", said_by(hand, wait_s=30.0))
        task_id = here.submit()
        until(lambda: here.status(task_id) == "dispatched", "the dispatch")
        until(lambda: not client.xrange(f"tasks:{hand.worker_id}"), "the loss")
    assert hand.finish(hand.offer(task_id).token).finished
    task = here.client.tasks.get(task_id)
    assert (task.status, len(task.attempt_list)) == ("completed", 1)
    hand.link.close()


def test_fault_01_an_answer_of_which_a_part_is_lost_is_taken_without_it(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis)
    hand = here.hand()
    here.server.should_exit = True
    here.core.signals.close()
    until(lambda: here.server.lifespan.shutdown_event.is_set(), "the server's end")
    with redis.client as client:
        thread, told = in_thread(lambda: hand.say(wait_s=1.0))
        ((_, entry),) = until(lambda: client.xrange("tasks.events"), "the exchange")
        answer = {"type": "REPLY", "re": entry["id"], "session": "s1", "offers": "1", "wishes": "0", "body": "{}"}
        client.xadd(f"tasks:{hand.worker_id}", answer)
        thread.join(60)
    assert told == [ExchangeReply()]
    hand.link.close()


def test_fault_02_an_end_that_is_lost_is_said_again(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis)
    hand = here.hand()
    token = hand.offer(here.submit()).token
    task_id = here.client.tasks.list().items[0].id
    assert hand.say(accepts=(token,), holding=(token,)).accepted
    here.stop()
    thread, told = in_thread(lambda: hand.finish(token, answer=42))
    with redis.client as client:
        until(lambda: client.xlen("tasks.events"), "the finish")
        client.flushdb()
    thread.join(60)
    assert isinstance(told[0], UnreachableError)
    here.start()
    again = until(lambda: _registered(hand, token), "the registration")
    assert again.keep == (token,)
    assert hand.finish(token, answer=42).finished == (token,)
    assert here.client.tasks.get(task_id).status == "completed"
    hand.link.close()


def _registered(hand: Hand, *tokens: str) -> Any:
    try:
        return hand.link.register(registration(hand.worker_id, holding=tokens))
    except UnreachableError:
        return None


def test_fault_03_a_restarted_server_loses_no_task_and_leaves_redis_alone(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis)
    here.worker("stays")
    until(lambda: here.online("stays"), "the registration")
    with redis.client as client:
        client.set("somebody:elses", "key")
        here.stop()
        assert client.get("somebody:elses") == "key"
        assert client.smembers("workers:ids") == {"stays"}
    here.start()
    ids = [here.submit() for _ in range(5)]
    until(lambda: all(here.completed(task_id) for task_id in ids), "the tasks' end")
    assert [worker.id for worker in here.client.workers.list().items] == ["stays"]


def test_fault_04_a_worker_hears_its_first_task(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis, accept_within_s=60)
    task_id = here.submit()
    said: list[str] = []
    with redis.client as client, redis.client as watching, watching.monitor() as monitor:
        watcher = threading.Thread(target=_listen, args=(monitor, said))
        watcher.start()
        here.worker("late")
        until(lambda: here.completed(task_id), "the task's end")
        client.echo("the end")
        watcher.join(60)
    # A dispatch that is not heard is made again, with the same attempt.
    sent = [line for line in said if line.startswith("XADD tasks:late ") and f" type TASK task_id {task_id} " in line]
    assert len(sent) == 1
    assert [attempt.state for attempt in here.client.tasks.get(task_id).attempt_list] == ["finished"]


def _listen(monitor: Any, said: list[str]) -> None:
    for told in monitor.listen():
        said.append(told["command"])
        if told["command"].endswith("the end"):
            return


def test_fault_05_no_attempt_is_spent_while_redis_is_away(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis, accept_within_s=60)
    here.worker("patient")
    until(lambda: here.online("patient"), "the registration")
    redis.kill()
    once = ECHO.replace("taskType: echo", "taskType: echo, retry: {max_attempts: 1}")
    ids = [here.submit(once) for _ in range(3)]
    log = here.folder / "results-patient" / "worker.log"
    until(lambda: "does not respond" in log.read_text(), "the worker's notice")
    redis.start()
    until(lambda: all(here.client.tasks.get(task_id).finished_at for task_id in ids), "the tasks' end")
    tasks = [here.client.tasks.get(task_id) for task_id in ids]
    assert [(task.status, task.attempts) for task in tasks] == [("completed", 1)] * 3
    assert all(sum(attempt.state == "finished" for attempt in task.attempt_list) == 1 for task in tasks)


def test_fault_08_what_a_lost_worker_says_late_changes_nothing(site: Start, redis_server: Redises) -> None:
    here = site(redis_server(), lost_after_s=2, accept_within_s=60)
    hangs = here.hand()
    task_id = here.submit()
    first = hangs.offer(task_id).token
    assert hangs.say(accepts=(first,), holding=(first,), want=0).accepted
    until(lambda: here.status(task_id) == "queued", "the loss")
    other = here.hand()
    other.finish(other.offer(task_id).token, by="other")
    assert here.completed(task_id)
    # The server has forgotten the attempt: it only says that nobody needs to say this again.
    hangs.finish(first, by="hangs")
    result = here.client.tasks.get(task_id).result
    assert result is not None
    assert result["result"] == {"by": "other"}
    for hand in (hangs, other):
        hand.link.close()


def test_fault_09_a_worker_gets_no_more_than_it_wants(site: Start, redis_server: Redises) -> None:
    here = site(redis_server(), accept_within_s=60)
    hand = here.hand()
    hand.say(want=1)
    ids = {here.submit(), here.submit()}
    (offer,) = hand.say(wait_s=10.0, want=1).offers
    assert hand.say(accepts=(offer.token,), holding=(offer.token,), want=0).accepted
    assert hand.say(holding=(offer.token,), want=0, wait_s=1.0).offers == ()
    assert hand.finish(offer.token).finished
    assert {hand.offer(task_id).task_id for task_id in ids - {offer.task_id}} == ids - {offer.task_id}
    hand.link.close()


def test_fault_13_a_worker_that_does_not_read_is_sent_nothing_of_the_others(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis, accept_within_s=60)
    busy, free = here.hand(), here.hand()
    token = busy.offer(here.submit()).token
    assert busy.say(accepts=(token,), holding=(token,), want=0).accepted
    with redis.client as client:
        # Its reader deletes what it has read, so the length says nothing; the id of the newest entry stays.
        newest = client.xinfo_stream(f"tasks:{busy.worker_id}")["last-generated-id"]
        for _ in range(20):
            free.finish(free.offer(here.submit()).token)
        assert client.xinfo_stream(f"tasks:{busy.worker_id}")["last-generated-id"] == newest
    assert busy.finish(token).finished == (token,)
    for hand in (busy, free):
        hand.link.close()


def test_fault_31_a_worker_without_the_executor_gets_no_task_of_its_kind(site: Start, redis_server: Redises) -> None:
    here = site(redis_server())
    hand = here.hand()
    able = Capabilities(
        version="0", hostname="here", executors=(ExecutorOffer(kind="lora_sft", available=False, reason="no torch"),),
        slots={"job": 1}, cpu_count=1, memory_total_bytes=1 << 30, memory_free_bytes=1 << 30, disk_free_bytes=1 << 30,
    )  # fmt: skip
    hand.link.register(registration(hand.worker_id, capabilities=able))
    task_id = here.submit(TRAIN)
    assert hand.say(wait_s=1.0, want=8).offers == ()
    assert here.status(task_id) == "queued"
    hand.link.close()


def test_fault_36_who_can_write_to_redis_can_neither_submit_nor_end_a_task_without_its_token(
    site: Start, redis_server: Redises
) -> None:
    redis = redis_server()
    here = site(redis, accept_within_s=60)
    hand = here.hand()
    task_id = here.submit()
    token = hand.offer(task_id).token
    assert hand.say(accepts=(token,), holding=(token,)).accepted
    with redis.client as client:
        client.xadd(
            "tasks", {"task_id": "forged", "task": "{}", "task_type": "echo", "assigned_worker": hand.worker_id}
        )
        client.xadd("tasks.events", {"type": "TASK_SUCCEEDED", "task_id": task_id, "worker_id": hand.worker_id})
        attempt = token.partition(".")[0]
        finish = {"token": f"{attempt}.{'0' * 32}", "outcome": "completed", "reason": "finished"}
        client.xadd("tasks.events", said_by(hand, finishes=[finish], holding=[token]))
        client.xadd("tasks.events", {**said_by(hand), "body": "{", "worker_id": "nobody"})
        until(lambda: not client.xpending("tasks.events", "tunefleet:tasks")["pending"], "the reading")
        until(lambda: not [1 for _, e in client.xrange("tasks.events") if e["type"] == "LINK_EXCHANGE"], "the end")
    assert here.status(task_id) == "running"
    assert [task.id for task in here.client.tasks.list().items] == [task_id]
    assert hand.finish(token).finished == (token,)
    hand.link.close()


def test_a_worker_that_hangs_is_given_up_and_does_no_harm_when_it_goes_on(site: Start, redis_server: Redises) -> None:
    here = site(redis_server(), lost_after_s=4)
    hangs = here.worker("hangs")
    until(lambda: here.online("hangs"), "the registration")
    hangs.send_signal(signal.SIGSTOP)
    ids = [here.submit() for _ in range(4)]
    until(lambda: not here.online("hangs"), "the loss")
    here.worker("helps")
    until(lambda: all(here.completed(task_id) for task_id in ids), "the tasks' end")
    hangs.send_signal(signal.SIGCONT)
    until(lambda: here.online("hangs"), "the return")
    for task_id in ids:
        task = here.client.tasks.get(task_id)
        assert [a.worker_id for a in task.attempt_list if a.state == "finished"] == ["helps"]


def test_a_second_worker_with_an_id_is_refused_by_name_be_the_first_alive_or_not(
    site: Start, redis_server: Redises
) -> None:
    here = site(redis_server())
    first = here.worker("twin")
    until(lambda: here.online("twin"), "the registration")
    for alive in (True, False):
        second = here.worker("twin", RESULTS_DIR=str(here.folder / f"elsewhere-{alive}"))
        _, said = second.communicate(timeout=90)
        assert second.returncode == 1
        assert "Worker id twin is bound to the results folder" in said
        assert "WORKER_ID" in said
        if alive:
            task_id = here.submit()
            until(lambda task_id=task_id: here.completed(task_id), "the task's end")
            first.kill()
            first.wait()
    here.worker("twin")
    task_id = here.submit()
    until(lambda: here.completed(task_id), "the task's end")


def test_a_process_that_was_taken_over_is_told_and_cannot_take_answers_away(site: Start, redis_server: Redises) -> None:
    here = site(redis_server())
    older = here.hand()
    newer = Hand(here.hand().link, older.worker_id, session="s2", state_id=f"state-{older.worker_id}")
    with pytest.raises(ConflictError, match="took over"):
        older.say()
    request = ExchangeRequest(worker_id=newer.worker_id, session="s2", want={"light": 1}, wait_s=10.0)
    task_id = here.submit()
    deadline = time.monotonic() + 60
    while not (offers := newer.link.exchange(request).offers):
        assert time.monotonic() < deadline
    assert offers[0].task_id == task_id
    for hand in (older, newer):
        hand.link.close()
