"""A training on several workers, as the server sees it: begun by all, ended for all, and blamed on who failed first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.orchestrator.lab import TRAIN, FakeWorker, Lab
from tunefleet.db.access import usage
from tunefleet.db.repositories import attempts
from tunefleet.db.repositories.tasks import by_ids
from tunefleet.db.rows import TaskRow
from tunefleet.orchestrator.preflight import explain
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.telemetry import live_feed
from tunefleet.schemas.worker_link import Offer

NODES = TRAIN + "  resources: {nodes: 2, hardware: {gpu: {count: 0}}}\n  retry: {max_attempts: 2, backoff_s: 0}\n"
POINT = "10.0.0.1:29500"


async def crew(lab: Lab, count: int = 2, **changes: Any) -> list[FakeWorker]:
    """Register workers that can be nodes."""
    made = []
    for number in range(1, count + 1):
        worker = lab.worker(f"w{number}")
        await worker.register(**{"torch_version": "2.13", "hostname": f"host{number}", **changes})
        await worker.exchange()
        made.append(worker)
    return made


async def row(lab: Lab, task_id: str) -> TaskRow:
    """Read what the store has of a task."""
    return (await lab.core.read(lambda connection: by_ids(connection, [task_id])))[task_id]


async def offered(lab: Lab, workers: list[FakeWorker]) -> tuple[list[FakeWorker], list[Offer]]:
    """Place what waits; return the workers of the gang and their offers, by rank."""
    await scheduler.run_once(lab.core)
    lab.clock.advance(2.0)
    found = [(offer, each) for each in workers for offer in (await each.exchange()).offers]
    found.sort(key=lambda pair: pair[0].gang.rank if pair[0].gang else 0)
    return [each for _, each in found], [offer for offer, _ in found]


async def begun(lab: Lab, workers: list[FakeWorker]) -> tuple[list[FakeWorker], list[Offer]]:
    """Let all nodes accept."""
    who, offers = await offered(lab, workers)
    for each, offer in zip(who, offers, strict=True):
        rank = offer.gang.rank if offer.gang else -1
        await each.exchange(accepts=(offer.token,), points={offer.token: POINT} if rank == 0 else {})
    for each, offer in zip(who, offers, strict=True):
        reply = await each.exchange(accepts=(offer.token,))
        assert reply.points == {offer.token: POINT}
        each.holding.append(offer.token)
    return who, offers


@pytest.mark.parametrize("outcome", ["completed", "paused"])
async def test_a_first_node_that_ends_before_all_have_begun_has_done_nothing(lab: Lab, outcome: str) -> None:
    workers = await crew(lab)
    task_id = await lab.submit(NODES)
    (head, member), (first, second) = await offered(lab, workers)
    reply = await head.finish(first.token, outcome, {"completed": "finished"}.get(outcome, outcome))
    assert reply.finished == (first.token,)
    task = await lab.task(task_id)
    assert (task.status, task.error) == ("queued", "The first node ended before all nodes had started.")
    assert (await member.exchange(accepts=(second.token,))).drop == (second.token,)


async def test_nobody_begins_before_all_have_accepted_and_then_all_know_where_they_meet(lab: Lab) -> None:
    workers = await crew(lab)
    task_id = await lab.submit(NODES)
    (head, member), (first, second) = await offered(lab, workers)
    assert [(each.gang.rank, each.gang.nodes) for each in (first, second) if each.gang] == [(0, 2), (1, 2)]
    assert first.gang is not None
    assert second.gang is not None
    assert first.gang.id == second.gang.id
    assert (first.attempt, second.attempt) == (1, 1)

    reply = await member.exchange(accepts=(second.token,))
    assert (reply.accepted, reply.drop) == ((), ())
    assert (await lab.task(task_id)).status == "dispatched"
    reply = await head.exchange(accepts=(first.token,), points={first.token: POINT})
    assert (reply.accepted, reply.points) == ((first.token,), {first.token: POINT})
    reply = await member.exchange(accepts=(second.token,), holding=(second.token,))
    assert (reply.accepted, reply.points) == ((second.token,), {second.token: POINT})

    task = await lab.task(task_id)
    assert (task.status, task.worker_id, task.attempts) == ("running", head.id, 1)
    (shown,) = task.attempt_list
    assert [node.worker_id for node in shown.nodes] == [head.id, member.id]
    told = await explain.of_task(lab.core, lab.admin, task_id)
    assert told.attempts == (f"Attempt 1 on {head.id}, {member.id} is running.",)


async def test_a_worker_that_does_not_come_costs_the_others_nothing_and_is_named(lab: Lab) -> None:
    workers = await crew(lab, 3)
    task_id = await lab.submit(NODES)
    (head, absent), (first, _) = await offered(lab, workers)
    await head.exchange(accepts=(first.token,), points={first.token: POINT})
    head.holding.append(first.token)
    await lab.sweep(lab.core.settings.accept_within_s + 1, alive=tuple(workers))
    task = await row(lab, task_id)
    assert (task.status, task.attempts, task.failures) == ("queued", 1, 0)
    assert (await head.exchange()).drop == (first.token,)
    head.holding.clear()
    opened = await lab.core.read(attempts.all_open)
    assert opened == []
    told = [
        each for each in await live_feed.events_after(lab.core, lab.admin, 0, limit=100) if each.kind == "task.message"
    ]
    assert [f"Worker {absent.id} did not accept node 1 in time" in each.data["message"] for each in told] == [True]
    (again, other), _ = await offered(lab, workers)
    assert absent.id not in {again.id, other.id}


async def test_a_lost_worker_ends_the_gang_and_costs_no_try(lab: Lab) -> None:
    workers = await crew(lab)
    task_id = await lab.submit(NODES)
    (head, _), (first, _) = await begun(lab, workers)
    # The first node sees at once that the other is gone: that alone decides nothing.
    reply = await head.finish(first.token, "failed", "network", error="Connection closed by peer", lost_peer=True)
    assert reply.finished == ()
    assert (await lab.task(task_id)).status == "running"
    await lab.sweep(lab.core.settings.lost_after_s + 2, alive=(head,))
    task = await row(lab, task_id)
    assert (task.status, task.reason, task.failures, task.losses) == ("queued", "worker_lost", 0, 1)
    assert first.token in (await head.exchange()).drop


@pytest.mark.parametrize("first_to_speak", ["head", "member"])
async def test_the_node_that_failed_by_itself_is_the_cause_whoever_speaks_first(lab: Lab, first_to_speak: str) -> None:
    workers = await crew(lab)
    task_id = await lab.submit(NODES)
    (head, member), (first, second) = await begun(lab, workers)

    async def head_says() -> None:
        await head.finish(first.token, "failed", "network", error="Connection closed by peer", lost_peer=True)

    async def member_says() -> None:
        await member.finish(second.token, "failed", "out_of_memory", error="CUDA out of memory.", detail="Traceback")

    for says in (head_says, member_says) if first_to_speak == "head" else (member_says, head_says):
        await says()
    task = await row(lab, task_id)
    assert (task.status, task.reason, task.failures) == ("queued", "out_of_memory", 1)
    assert task.error == f"Node 1 ({member.id}): CUDA out of memory."
    assert first.token in (await head.exchange()).drop or head.holding == []
    assert await lab.core.read(attempts.all_open) == []


async def test_the_end_of_the_first_node_is_that_of_the_task_and_each_node_has_used_its_share(lab: Lab) -> None:
    workers = await crew(lab)
    task_id = await lab.submit(NODES)
    (head, member), (first, second) = await begun(lab, workers)
    lab.clock.advance(100.0)
    reply = await member.finish(second.token)
    assert reply.finished == (second.token,)
    assert (await lab.task(task_id)).status == "running"
    await head.finish(first.token, result={"loss": 1.0})
    task = await lab.task(task_id)
    assert (task.status, task.result) == ("completed", {"task_id": task_id, **(task.result or {})})
    assert [attempt.reason for attempt in task.attempt_list] == ["finished"]
    used = await lab.core.read(lambda connection: usage.sums(connection, by="worker", project=None, since=0.0))
    assert {each.key for each in used} == {head.id, member.id}


async def test_a_cancel_and_a_pause_are_asked_of_the_first_node_alone(lab: Lab) -> None:
    workers = await crew(lab)
    task_id = await lab.submit(NODES)
    (head, member), (first, second) = await begun(lab, workers)
    await tasks.cancel(lab.core, lab.admin, task_id)
    (desired,) = (await head.exchange()).desired
    assert (desired.token, desired.action) == (first.token, "cancel")
    assert (await member.exchange()).desired == ()
    await head.finish(first.token, "cancelled", "cancelled_by_user")
    assert (await lab.task(task_id)).status == "cancelled"
    assert (await member.exchange()).drop == (second.token,)


async def test_a_gang_that_is_not_complete_is_cancelled_whole_and_holds_nothing(lab: Lab) -> None:
    workers = await crew(lab)
    task_id = await lab.submit(NODES)
    (_, member), (_, second) = await offered(lab, workers)
    await member.exchange(accepts=(second.token,))
    await tasks.cancel(lab.core, lab.admin, task_id)
    assert (await member.exchange(holding=(second.token,))).drop == (second.token,)
    assert await lab.core.read(attempts.all_open) == []


async def test_a_first_node_whose_peers_say_nothing_for_long_is_believed(lab: Lab) -> None:
    workers = await crew(lab)
    task_id = await lab.submit(NODES)
    (head, member), (first, second) = await begun(lab, workers)
    said = {"error": "Connection closed by peer", "lost_peer": True}
    await head.finish(first.token, "failed", "network", **said)
    await lab.sweep(lab.core.settings.lost_after_s + 40, alive=(head, member))
    task = await row(lab, task_id)
    assert (task.status, task.reason, task.failures) == ("queued", "network", 1)
    assert (await member.exchange()).drop == (second.token,)


async def test_workers_with_other_releases_or_none_are_never_nodes_of_one_training(lab: Lab) -> None:
    await crew(lab, 1)
    other = lab.worker("w2")
    await other.register(torch_version="2.14")
    await other.exchange()
    task_id = await lab.submit(NODES)
    assert await scheduler.run_once(lab.core) == 0
    told = (await lab.task(task_id)).why or ""
    assert "2 nodes" in told
    assert "torch 2.13" in told
    assert "torch 2.14" in told


async def test_all_nodes_go_on_from_the_newest_checkpoint_that_the_server_has(lab: Lab) -> None:
    workers = await crew(lab)
    await lab.submit(NODES)
    (head, member), (first, second) = await begun(lab, workers)
    assert (first.resume, second.resume) == (None, None)
    for step in (4, 8):
        who = await lab.attempt(first.token)
        await lab.publish(who, f"checkpoint-{step}", b"%d" % step, kind="checkpoint", metadata={"step": step})
    await member.finish(second.token, "failed", "killed", error="It was killed.")
    for each in (head, member):
        each.holding.clear()
    _, again = await offered(lab, workers)
    assert [each.attempt for each in again] == [2, 2]
    resumes = [each.resume for each in again]
    assert [(each.step, each.exact, each.checkpoint is not None) for each in resumes if each] == [(8, True, True)] * 2


async def test_a_gang_that_one_worker_cannot_form_leaves_it_to_later_tasks(lab: Lab) -> None:
    workers = await crew(lab, 1)
    gang = await lab.submit(NODES)
    simple = await lab.submit(TRAIN)
    _, offers = await offered(lab, workers)
    assert [offer.task_id for offer in offers] == [simple]
    assert "it needs 2 nodes at the same time" in str((await lab.task(gang)).why)
