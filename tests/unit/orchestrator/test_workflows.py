"""Submit, list, find, repeat and remove."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.orchestrator.lab import ECHO, TRAIN, Lab
from tunefleet.errors import ConflictError, ForbiddenError, InputError, NotFoundError, SpecError
from tunefleet.orchestrator.preflight import explain as why_service
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.storage import artifacts
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.telemetry import live_feed
from tunefleet.orchestrator.workflows import reruns, workflows
from tunefleet.schemas.api import SubmitRequest
from tunefleet.schemas.worker_link import Gpu


async def test_a_wrong_document_stores_nothing(lab: Lab) -> None:
    with pytest.raises(SpecError) as caught:
        await lab.submit(ECHO.replace("taskType: echo", "taskType: ecco"))
    assert caught.value.faults[0].line == 4
    assert (await workflows.list_(lab.core, lab.admin)).items == ()
    assert await live_feed.events_after(lab.core, lab.admin, 0) == []
    reply = workflows.validate(ECHO.replace("data", "dta"))
    assert not reply.ok
    assert reply.faults
    assert workflows.validate(ECHO).tasks == ("hello",)


async def test_waiting_for_a_lost_node_is_refused_before_the_submit_and_at_it(lab: Lab) -> None:
    document = TRAIN + "  on_lost: wait\n  resources: {nodes: 2, hardware: {gpu: {count: 0}}}\n"
    foreseen = await why_service.of_document(lab.core, lab.admin, SubmitRequest(document=document))
    for told in (workflows.validate(document), foreseen):
        assert [fault.path for fault in told.faults] == ["spec.resources.nodes"]
    with pytest.raises(SpecError, match="the other nodes stop when a worker is lost"):
        await lab.submit(document)


async def test_a_repeated_submit_returns_the_first_answer(lab: Lab) -> None:
    request = SubmitRequest(document=ECHO)
    made = await asyncio.gather(
        *(workflows.submit(lab.core, lab.admin, request, idempotency_key="k") for _ in range(5))
    )
    assert len({workflow.id for workflow in made}) == 1
    assert len((await workflows.list_(lab.core, lab.admin)).items) == 1
    with pytest.raises(ConflictError, match="used for another workflow file"):
        await workflows.submit(lab.core, lab.admin, SubmitRequest(document=TRAIN), idempotency_key="k")
    # A key is its owner's.
    other = await lab.actor("alice", "member")
    theirs = await workflows.submit(lab.core, other, request, idempotency_key="k")
    assert theirs.id != made[0].id


async def test_a_task_that_nobody_could_run_says_so(lab: Lab) -> None:
    await lab.online()
    wants_gpu = TRAIN + "  resources: {hardware: {gpu: {count: 1, memory: 24Gi}}}\n"
    made = await workflows.submit(lab.core, lab.admin, SubmitRequest(document=wants_gpu))
    assert made.tasks[0].why == "unschedulable: w1 has 0 GPUs, 1 are needed."
    assert "unschedulable" in made.warnings[0]
    with pytest.raises(SpecError, match="no worker could run") as refused:
        await workflows.submit(lab.core, lab.admin, SubmitRequest(document=wants_gpu, strict=True))
    line = wants_gpu.splitlines().index("  resources: {hardware: {gpu: {count: 1, memory: 24Gi}}}") + 1
    (fault,) = refused.value.faults
    assert (fault.path, fault.line, fault.column) == ("spec.resources", line, 14)
    why = await why_service.of_task(lab.core, lab.admin, made.tasks[0].id)
    assert [(each.worker_id, each.verdict, each.reason) for each in why.workers] == [
        ("w1", "never", "has 0 GPUs, 1 are needed")
    ]
    gpu = Gpu(index=0, name="RTX", uuid="u", memory_total_bytes=48 << 30)
    worker = lab.worker("w2", session="s2")
    await worker.register(gpus=(gpu,))
    await worker.exchange()
    assert await scheduler.run_once(lab.core) == 1


async def test_a_gpu_is_given_to_one_task_at_a_time(lab: Lab) -> None:
    gpu = Gpu(index=0, name="RTX", uuid="u", memory_total_bytes=48 << 30)
    worker = lab.worker(want={"job": 2})
    await worker.register(gpus=(gpu,), slots={"job": 2})
    document = TRAIN + "  resources: {hardware: {gpu: {count: 1}}}\n"
    first, second = await lab.submit(document), await lab.submit(document)
    offers = await worker.offers()
    assert [offer.task_id for offer in offers] == [first]
    why = (await lab.task(second)).why
    assert why == "waiting: w1 has no free GPU."


async def test_priority_goes_first_and_waiting_catches_up(lab: Lab) -> None:
    low = await lab.submit(ECHO)
    lab.clock.advance(60)
    high = await lab.submit(ECHO + "  priority: 1\n")
    lab.clock.advance(3600)
    late = await lab.submit(ECHO + "  priority: 1\n")
    worker = await lab.online(want={"light": 1})
    order = []
    for _ in range(3):
        offer = await worker.start()
        order.append(offer.task_id)
        await worker.finish(offer.token)
    assert order == [high, low, late]


async def test_lists_are_paged_and_filtered(lab: Lab) -> None:
    alice = await lab.actor("alice", "member")
    ids = [await lab.submit() for _ in range(5)]
    theirs = await workflows.submit(lab.core, alice, SubmitRequest(document=TRAIN))
    page = await tasks.list_(lab.core, lab.admin, limit=4)
    assert [task.id for task in page.items] == [theirs.tasks[0].id, *reversed(ids[2:])]
    rest = await tasks.list_(lab.core, lab.admin, limit=4, cursor=page.next_cursor)
    assert [task.id for task in rest.items] == [ids[1], ids[0]]
    assert rest.next_cursor is None
    by = {
        "owner": "alice",
        "kind": "lora_sft",
        "workflow_id": theirs.id,
    }
    for name, value in by.items():
        found = await tasks.list_(lab.core, lab.admin, **{name: value})  # type: ignore[arg-type]
        assert [task.id for task in found.items] == [theirs.tasks[0].id]
    assert (await tasks.list_(lab.core, lab.admin, status="completed,failed")).items == ()
    assert len((await tasks.list_(lab.core, lab.admin, status="queued,failed")).items) == 6
    flows = await workflows.list_(lab.core, lab.admin, owner="alice", status="running", name="train")
    assert [flow.id for flow in flows.items] == [theirs.id]
    with pytest.raises(InputError, match="is not a cursor"):
        await tasks.list_(lab.core, lab.admin, cursor="'; drop")


async def test_ids_may_be_shortened(lab: Lab) -> None:
    task_id = await lab.submit()
    assert (await tasks.get(lab.core, lab.admin, task_id[:-3])).id == task_id
    assert (await tasks.get(lab.core, lab.admin, task_id.removeprefix("task-")[:6])).id == task_id
    flow = (await lab.task(task_id)).workflow_id
    assert (await workflows.get(lab.core, lab.admin, flow.removeprefix("wf-")[:8])).id == flow
    for _ in range(20):
        await lab.submit()
    with pytest.raises(ConflictError, match="Several") as caught:
        await tasks.get(lab.core, lab.admin, "task-")
    assert str(caught.value.hint).count("task-") == 5
    assert str(caught.value.hint).endswith(", ….")
    with pytest.raises(ConflictError, match="Several"):
        await workflows.get(lab.core, lab.admin, "wf-")
    with pytest.raises(NotFoundError):
        await tasks.get(lab.core, lab.admin, "task-nothing")
    with pytest.raises(NotFoundError):
        await workflows.get(lab.core, lab.admin, "nothing")


async def test_a_workflow_ends_with_its_tasks(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit()
    flow = (await lab.task(task_id)).workflow_id
    offer = await worker.start()
    assert (await workflows.get(lab.core, lab.admin, flow)).status == "running"
    with pytest.raises(ConflictError, match="not ended"):
        await workflows.remove(lab.core, lab.admin, flow)
    await worker.finish(offer.token, "failed", "bad_input", error="No such column.")
    assert (await workflows.get(lab.core, lab.admin, flow)).status == "failed"
    with pytest.raises(ConflictError, match="already failed"):
        await workflows.cancel(lab.core, lab.admin, flow)
    cancelled = (await lab.task(await lab.submit())).workflow_id
    assert (await workflows.cancel(lab.core, lab.admin, cancelled)).status == "cancelled"


async def test_members_change_what_is_theirs_and_read_what_is_not(lab: Lab) -> None:
    alice, bob = await lab.actor("alice", "member"), await lab.actor("bob", "member")
    viewer = await lab.actor("eve", "viewer")
    made = await workflows.submit(lab.core, alice, SubmitRequest(document=ECHO))
    task_id = made.tasks[0].id
    assert made.owner == "alice"
    for reader in (bob, viewer):
        assert (await tasks.get(lab.core, reader, task_id)).owner == "alice"
        with pytest.raises(ForbiddenError):
            await tasks.cancel(lab.core, reader, task_id)
    with pytest.raises(ForbiddenError):
        await workflows.submit(lab.core, viewer, SubmitRequest(document=ECHO))
    with pytest.raises(ForbiddenError):
        await tasks.list_(lab.core, lab.worker_key)
    assert (await tasks.cancel(lab.core, alice, task_id)).status == "cancelled"
    assert (await tasks.cancel(lab.core, lab.admin, task_id)).status == "cancelled"


async def test_a_final_task_is_submitted_again(lab: Lab) -> None:
    task_id = await lab.submit()
    with pytest.raises(ConflictError):
        await reruns.retry(lab.core, lab.admin, task_id)
    await tasks.cancel(lab.core, lab.admin, task_id)
    again = await reruns.retry(lab.core, lab.admin, task_id)
    assert again.tasks[0].parent_task_id == task_id
    assert again.tasks[0].status == "queued"
    assert again.document == ECHO
    assert (await lab.task(task_id)).status == "cancelled"


async def test_a_clone_takes_changes_and_keeps_the_inputs_that_they_leave(lab: Lab) -> None:
    data = await lab.publish(lab.admin, "rows.jsonl", b'{"text": "x"}\n', metadata={"single_file": True})
    document = TRAIN.replace("data: {prompts: [one, two]}", "data: {path: ./rows.jsonl, text_field: text}")
    inputs = {"train": {"data.path": data.digest}}
    task_id = await lab.submit(document, inputs=inputs)
    assert (await lab.task(task_id)).inputs == {"data.path": data.digest}
    changed = await reruns.clone(lab.core, lab.admin, task_id, {"training.learning_rate": 0.5})
    clone = await lab.task(changed.tasks[0].id)
    assert clone.spec["training"]["learning_rate"] == 0.5
    assert clone.inputs == {"data.path": data.digest}
    assert clone.parent_task_id == task_id
    other = await reruns.clone(lab.core, lab.admin, task_id, {"data": {"prompts": ["three"]}})
    assert (await lab.task(other.tasks[0].id)).inputs == {}
    with pytest.raises(SpecError) as caught:
        await reruns.clone(lab.core, lab.admin, task_id, {"training.lerning_rate": 0.5})
    digest = (await lab.publish(lab.admin, "mine", b"x")).digest
    for overrides in ({}, {"priority": 1}):
        with pytest.raises(InputError, match=r"inputs\.data\.path belongs to no changed field"):
            await reruns.clone(lab.core, lab.admin, task_id, overrides, {"data.path": digest})
    (fault,) = caught.value.faults
    assert str(fault) == "spec.training.lerning_rate: is not a known key (did you mean learning_rate?)", (
        "without a line"
    )


async def test_data_is_named_or_must_have_been_uploaded(lab: Lab) -> None:
    named = TRAIN.replace("data: {prompts: [one, two]}", "data: {artifact: rows, text_field: text}")
    with pytest.raises(NotFoundError, match="Data 'rows' not found"):
        await lab.submit(named)
    with pytest.raises(NotFoundError, match=r"data\.path"):
        await lab.submit(TRAIN, inputs={"train": {"data.path": "0" * 64}})
    assert (await tasks.list_(lab.core, lab.admin)).items == ()
    await lab.publish(lab.admin, "rows", b"old")
    newest = await lab.publish(lab.admin, "rows", b"new")
    task_id = await lab.submit(named)
    assert (await lab.task(task_id)).inputs == {"data.artifact": newest.digest}
    worker = await lab.online()
    (offer,) = await worker.offers()
    assert offer.inputs["data.artifact"].digest == newest.digest
    assert offer.inputs["data.artifact"].name == "rows"
    with pytest.raises(ConflictError, match=f"read by {task_id}"):
        await artifacts.remove(lab.core, lab.admin, "rows")


async def test_a_removed_task_leaves_nothing(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    attempt = await lab.attempt(offer.token)
    await lab.journal(offer.token, "l1", [{"type": "launch", "launch": "l1"}])
    made = await lab.publish(attempt, "final_lora", b"weights")
    with pytest.raises(ConflictError):
        await tasks.remove(lab.core, lab.admin, task_id)
    await worker.finish(offer.token)
    await tasks.remove(lab.core, lab.admin, task_id)
    with pytest.raises(NotFoundError):
        await lab.task(task_id)
    with pytest.raises(NotFoundError):
        await artifacts.get(lab.core, lab.admin, made.id)
    # The worker is told to delete the job folder, until it says that it has.
    assert (await worker.exchange()).discard == (task_id,)
    assert (await worker.exchange()).discard == (task_id,)
    assert (await worker.exchange(discarded=(task_id,))).discard == ()
    assert (await worker.exchange()).discard == ()
    assert await live_feed.events_after(lab.core, lab.admin, 0, task_id=task_id) == []
    assert (await workflows.list_(lab.core, lab.admin)).items == ()


async def test_events_are_paged_by_the_last_id(lab: Lab) -> None:
    first, second = await lab.submit(), await lab.submit()
    everything = await live_feed.events_after(lab.core, lab.admin, 0)
    seen, last = [], 0
    while page := await live_feed.events_after(lab.core, lab.admin, last, limit=1):
        seen += page
        last = page[-1].id
    assert seen == everything
    assert last == await live_feed.last_event_id(lab.core, lab.admin)
    mine = await live_feed.events_after(lab.core, lab.admin, 0, task_id=second)
    assert {event.task_id for event in mine} == {second}
    flow = (await lab.task(first)).workflow_id
    theirs = await live_feed.events_after(lab.core, lab.admin, 0, workflow_id=flow)
    assert [event.kind for event in theirs] == ["workflow.submitted", "task.queued"]
    only = await live_feed.events_after(lab.core, lab.admin, 0, kinds=["task.queued"])
    assert [event.task_id for event in only] == [first, second]
