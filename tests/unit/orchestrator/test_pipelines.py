"""Workflows of several tasks: who waits for whom, what references become, and what an end means for the others."""

from __future__ import annotations

import pytest

from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.pipelines import Pipelines, stage
from tests.unit.orchestrator.test_checkpoints import launched, saved, upload
from tunefleet.db.repositories import tasks as task_rows
from tunefleet.errors import ConflictError, SpecError
from tunefleet.orchestrator.preflight import explain as why_service
from tunefleet.orchestrator.storage import artifacts
from tunefleet.orchestrator.tasks import control, tasks
from tunefleet.orchestrator.telemetry import live_feed
from tunefleet.orchestrator.training_protocol.offers import polled
from tunefleet.orchestrator.workflows import prune, reruns, workflows
from tunefleet.schemas.api import SubmitRequest
from tunefleet.schemas.worker_link import Finish

TRAIN = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
    "data": {"prompts": ["${first.result.items.0}", "two"]},
}


@pytest.fixture
async def pipe(lab: Lab) -> Pipelines:
    return Pipelines(lab, await lab.online())


async def test_a_stage_begins_with_what_the_stage_before_it_found(pipe: Pipelines) -> None:
    data = {"type": "list", "items": ["${first.result.items.0}", "by ${first.task_id}"]}
    flow = await pipe.submit(stage("first"), stage("second", "first", spec={"data": data}))
    first, second = flow.tasks
    assert (second.status, second.depends_on, second.queued_at) == ("pending", (first.id,), None)
    assert second.why == "waiting for first (queued)."
    why = await why_service.of_task(pipe.lab.core, pipe.lab.admin, second.id)
    assert why.waits_for == ((first.id, "first"),)
    (offer,) = await pipe.take()
    assert offer.name == "first"
    assert await pipe.take() == []
    await pipe.end(offer, {"items": ["found"]})
    assert await pipe.states(flow) == {"first": "completed", "second": "queued"}
    await pipe.run()
    assert pipe.specs["second"]["data"]["items"] == ["found", f"by {first.id}"]
    assert (await pipe.see(flow)).status == "completed"
    detail = await pipe.task(flow, "second")
    assert (await pipe.found(flow, "second"))["items"] == ["found", f"by {first.id}"]
    assert detail.spec["data"] == data, "what the user wrote stays to be seen"
    assert detail.resolved is not None
    assert detail.resolved["data"]["items"] == ["found", f"by {first.id}"]
    kinds = [e.kind for e in await live_feed.events_after(pipe.lab.core, pipe.lab.admin, 0, task_id=second.id)]
    assert kinds == ["task.pending", "task.queued", "task.offered", "task.started", "task.completed"]


async def test_a_value_keeps_its_type_and_settles_policy_and_place_in_the_queue(pipe: Pipelines) -> None:
    late = {"priority": "${first.result.much}", "limits": {"max_queue_s": 50}, "retry": {"max_attempts": 7}}
    flow = await pipe.submit(stage("first"), stage("second", "first", spec=late))
    pipe.lab.clock.advance(1000)
    (offer,) = await pipe.take()
    await pipe.end(offer, {"much": 3})
    second = await pipe.task(flow, "second")
    assert (second.status, second.priority) == ("queued", 3)
    pipe.worker.want = {}
    await pipe.lab.sweep(60, alive=(pipe.worker,))
    assert (await pipe.task(flow, "second")).reason == "timeout", "it waited in the queue from when it was ready"


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("${first.result.items.7}", "items"),
        ("${first.result.nothing}", "null"),
        ("${first.result.other.deep}", "other"),
    ],
)
async def test_a_reference_without_a_value_fails_the_task_with_a_sentence(
    pipe: Pipelines, field: str, says: str
) -> None:
    data = {"type": "list", "items": [field]}
    flow = await pipe.submit(stage("first"), stage("second", "first", spec={"data": data}), stage("third", "second"))
    await pipe.run({"first": {"items": ["a"], "nothing": None}})
    second = await pipe.task(flow, "second")
    assert (second.status, second.reason) == ("failed", "bad_input")
    assert field in (second.error or "")
    assert says in (second.error or "")
    assert pipe.ran == ["first"]
    assert await pipe.states(flow) == {"first": "completed", "second": "failed", "third": "failed"}


async def test_a_spec_that_becomes_wrong_by_its_references_fails_the_task(pipe: Pipelines) -> None:
    wrong = {"priority": "${first.result.much}"}
    flow = await pipe.submit(stage("first"), stage("second", "first", spec=wrong))
    await pipe.run({"first": {"much": 1000}})
    second = await pipe.task(flow, "second")
    assert second.reason == "bad_input"
    assert "spec.priority" in (second.error or "")


async def test_fault_07_all_dependents_of_a_failed_task_fail(pipe: Pipelines) -> None:
    flow = await pipe.submit(
        stage("a"), stage("b", "a"), stage("c", "b"), stage("d", "c", "aside"), stage("aside"), stage("free", "aside")
    )
    await pipe.run({"a": "bad_input"})
    assert await pipe.states(flow) == {
        "a": "failed", "b": "failed", "c": "failed", "d": "failed", "aside": "completed", "free": "completed",
    }  # fmt: skip
    last = await pipe.task(flow, "d")
    assert last.reason == "upstream_failed"
    assert last.error == f"a ({flow.tasks[0].id}) failed: a broke."
    assert set(pipe.ran) == {"a", "aside", "free"}
    assert (await pipe.see(flow)).status == "failed"


async def test_fault_08_a_late_failure_does_not_wake_what_is_finished(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("a"), stage("b", "a"))
    (offer,) = await pipe.take()
    await pipe.end(offer, {"items": []})
    await pipe.worker.finish(offer.token, "failed", "crashed", error="too late")
    assert await pipe.states(flow) == {"a": "completed", "b": "queued"}
    await pipe.run()
    await pipe.worker.finish(offer.token, "failed", "crashed", error="much too late")
    assert await pipe.states(flow) == {"a": "completed", "b": "completed"}
    assert pipe.ran == ["a", "b"]


async def test_a_stage_that_is_tried_again_keeps_the_others_waiting(pipe: Pipelines) -> None:
    again = {"retry": {"max_attempts": 2, "backoff_s": 0}}
    flow = await pipe.submit(stage("a", spec=again), stage("b", "a"))
    (offer,) = await pipe.take()
    await pipe.end(offer, "network")
    assert await pipe.states(flow) == {"a": "queued", "b": "pending"}
    await pipe.run()
    assert pipe.ran == ["a", "a", "b"]


async def test_a_submit_says_what_may_not_be_meant(pipe: Pipelines) -> None:
    flow = await pipe.submit(
        stage("first"), stage("second", "first", spec={"data": {"type": "list", "items": ["{{first.output}}"]}})
    )
    said = (
        "second: spec.data.items.0 contains {{first.output}}, which is not replaced; "
        "write the reference as ${first.output}."
    )
    assert flow.warnings == (said,)


async def test_cancelling_a_task_cancels_what_waits_for_it(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("a"), stage("b", "a"), stage("c", "b"), stage("aside"))
    core, admin = pipe.lab.core, pipe.lab.admin
    await tasks.cancel(core, admin, flow.tasks[1].id)
    assert await pipe.states(flow) == {"a": "queued", "b": "cancelled", "c": "cancelled", "aside": "queued"}
    third = await pipe.task(flow, "c")
    assert (third.reason, third.error) == ("upstream_cancelled", f"b ({flow.tasks[1].id}) was cancelled.")
    await pipe.run()
    assert (await pipe.see(flow)).status == "cancelled"


async def test_cancelling_a_workflow_ends_what_waits_at_once_and_asks_what_runs(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("a"), stage("b", "a"), stage("c", "b"))
    (offer,) = await pipe.take()
    core, admin = pipe.lab.core, pipe.lab.admin
    await workflows.cancel(core, admin, flow.id)
    assert await pipe.states(flow) == {"a": "running", "b": "cancelled", "c": "cancelled"}
    await pipe.worker.finish(offer.token, "cancelled", "aborted")
    assert await pipe.states(flow) == {"a": "cancelled", "b": "cancelled", "c": "cancelled"}
    assert (await pipe.see(flow)).status == "cancelled"


async def test_a_task_may_wait_for_one_of_an_earlier_workflow(pipe: Pipelines) -> None:
    earlier = await pipe.submit(stage("earlier"))
    id_ = earlier.tasks[0].id
    later = await pipe.submit(stage("later", external=[id_]))
    assert later.tasks[0].depends_on == (id_,)
    assert later.tasks[0].status == "pending"
    await pipe.run()
    assert pipe.ran == ["earlier", "later"]
    at_once = await pipe.submit(stage("at once", external=[id_, id_]))
    assert at_once.tasks[0].status == "queued", "what is completed counts"
    await pipe.run()
    assert (await pipe.see(at_once)).status == "completed"


async def test_fault_11_a_dependency_that_cannot_be_met_is_refused_at_the_submit(pipe: Pipelines) -> None:
    with pytest.raises(SpecError, match="later depends on task-none, which does not exist"):
        await pipe.submit(stage("later", external=["task-none"]))
    bad = await pipe.submit(stage("bad"))
    await pipe.run({"bad": "bad_input"})
    with pytest.raises(SpecError, match="which is already failed"):
        await pipe.submit(stage("later", external=[bad.tasks[0].id]))
    assert len((await workflows.list_(pipe.lab.core, pipe.lab.admin)).items) == 1


STRANGERS = """apiVersion: tunefleet/v1
metadata: {name: strange}
spec:
  taskType: echo
  stages:
    - name: first
      dependsOn: [task-000000000000]
    - name: second
      spec: {data: {type: list, items: [a, "see ${task-ffffffffffff.result.x}"]}}
    - name: third
      spec:
        condition: {node: task-eeeeeeeeeeee, field: result.x, equals: 1}
    - name: fourth
      spec:
        taskType: lora_sft
        model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
        data: {prompts: [a]}
        checkpoint: {load: {taskId: task-dddddddddddd}}
"""


async def test_fault_11_tasks_that_are_not_there_are_named_where_they_stand_at_a_submit_and_a_dry_run(
    pipe: Pipelines,
) -> None:
    core, admin, request = pipe.lab.core, pipe.lab.admin, SubmitRequest(document=STRANGERS)
    with pytest.raises(SpecError) as refused:
        await workflows.submit(core, admin, request)
    told = refused.value.faults
    assert [(fault.line, fault.column, fault.path.removeprefix("spec.stages.")) for fault in told] == [
        (7, 19, "0.dependsOn.0"),
        (9, 44, "1.spec.data.items.1"),
        (12, 27, "2.spec.condition.node"),
        (18, 37, "3.spec.checkpoint.load.taskId"),
    ]
    assert "${task-ffffffffffff.result.x} of second needs task-ffffffffffff, which does not exist" in told[1].message
    assert "the condition of third asks for task-eeeeeeeeeeee, which" in told[2].message
    assert all("tunefleet ls" in (fault.hint or "") for fault in told)
    dry = await why_service.of_document(core, admin, request)
    assert not dry.ok
    assert [(each.line, each.column, each.message, each.hint) for each in dry.faults] == [
        (each.line, each.column, each.message, each.hint) for each in told
    ]


async def test_of_tasks_that_become_ready_together_the_heavier_goes_first(pipe: Pipelines) -> None:
    loads = {"light": 1, "heavy": 50, "middle": 7}
    stages = [stage(n, "a", spec={"resources": {"estimatedLoad": load}}) for n, load in loads.items()]
    await pipe.submit(stage("a"), *stages)
    pipe.worker.want = {"light": 1}
    await pipe.run()
    assert pipe.ran == ["a", "heavy", "middle", "light"]


async def test_what_a_pending_task_needs_is_not_removed(pipe: Pipelines) -> None:
    core, admin = pipe.lab.core, pipe.lab.admin
    earlier = await pipe.submit(stage("earlier"))
    await pipe.run()
    pipe.worker.want = {}
    flow = await pipe.submit(stage("a"), stage("b", "a", external=[earlier.tasks[0].id]))
    waiting = flow.tasks[1].id
    for verb, id_ in ((tasks.remove, earlier.tasks[0].id), (workflows.remove, earlier.id)):
        with pytest.raises(ConflictError, match=f"Run {waiting} still needs the result"):
            await verb(core, admin, id_)
    assert (await prune.run(core, -1.0, dry_run=True)).workflows == ()
    await tasks.cancel(core, admin, flow.tasks[0].id)
    assert set((await prune.run(core, -1.0)).workflows) == {earlier.id, flow.id}


async def test_a_pending_task_is_not_paused(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("a"), stage("b", "a"))
    with pytest.raises(ConflictError, match="is pending; only an active run can be paused"):
        await control.pause(pipe.lab.core, pipe.lab.admin, flow.tasks[1].id)


async def test_a_stage_is_repeated_with_what_its_references_stood_for(pipe: Pipelines) -> None:
    core, admin = pipe.lab.core, pipe.lab.admin
    data = {"type": "list", "items": ["${first.result.items.0}"]}
    flow = await pipe.submit(stage("first"), stage("second", "first", spec={"data": data}), stage("third", "second"))
    await pipe.run({"first": {"items": ["found $${it}"]}, "second": "bad_input"})
    again = await reruns.retry(core, admin, flow.tasks[1].id)
    (task,) = again.tasks
    assert (task.name, task.status, task.parent_task_id) == ("second", "queued", flow.tasks[1].id)
    await pipe.run()
    assert pipe.specs["second"]["data"]["items"] == ["found $$${it}"], "escaped, as every text that comes from a result"
    changed = await reruns.clone(core, admin, flow.tasks[1].id, {"data.items": ["other"]})
    await pipe.run()
    assert (await pipe.found(changed, "second"))["items"] == ["other"]
    with pytest.raises(ConflictError, match="never became ready") as caught:
        await reruns.retry(core, admin, flow.tasks[2].id)
    assert f"tunefleet retry {flow.id}" in (caught.value.hint or "")


async def test_a_workflow_is_run_again_without_what_has_completed(pipe: Pipelines) -> None:
    core, admin = pipe.lab.core, pipe.lab.admin
    data = {"type": "list", "items": ["${a.result.items.0}${b.result.items.0}"]}
    flow = await pipe.submit(stage("a"), stage("b"), stage("c", "a", "b", spec={"data": data}), stage("d", "c"))
    with pytest.raises(ConflictError, match="has not ended"):
        await workflows.retry(core, admin, flow.id)
    await pipe.run({"a": {"items": ["A"]}, "b": "bad_input"})
    assert await pipe.states(flow) == {"a": "completed", "b": "failed", "c": "failed", "d": "failed"}
    second = await workflows.retry(core, admin, flow.id)
    assert await pipe.states(second) == {"b": "queued", "c": "pending", "d": "pending"}
    assert second.tasks[0].parent_task_id == flow.tasks[1].id
    await pipe.run({"b": {"items": ["B"]}, "c": "bad_input"})
    third = await workflows.retry(core, admin, second.id)
    assert set(await pipe.states(third)) == {"c", "d"}
    await pipe.run()
    assert pipe.specs["c"]["data"]["items"] == ["AB"]
    assert (await pipe.see(third)).status == "completed"
    with pytest.raises(ConflictError, match="has completed"):
        await workflows.retry(core, admin, third.id)


async def test_fault_14_training_takes_what_an_earlier_stage_has_exported(pipe: Pipelines) -> None:
    """Also where the export is known before it is uploaded: the reference is resolved when the result is stored."""
    export = {"path": "artifacts/pairs.jsonl", "url": "http://host:8000/api/v1/results/t/files/pairs.jsonl"}
    jsonl = {
        "path": "${bootstrap.result.jsonl_export.path}", "url": "${bootstrap.result.jsonl_export.url}",
        "prompt_field": "prompt", "response_field": "response",
    }  # fmt: skip
    model = {"source": {"identifier": "builtin:gsm8k-llama-2m"}}
    train = {"taskType": "sft", "model": model, "data": {"jsonl": jsonl}}
    flow = await pipe.submit(stage("bootstrap"), stage("train", "bootstrap", spec=train))
    await pipe.run({"bootstrap": {"items": [], "jsonl_export": export}, "train": {"ok": True}})
    assert await pipe.states(flow) == {"bootstrap": "completed", "train": "completed"}
    assert pipe.specs["train"]["data"]["jsonl"] == {**jsonl, **export}


async def test_fault_02_an_end_that_is_said_again_is_known_and_moves_nothing_twice(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("a"), stage("b", "a"))
    (offer,) = await pipe.take()
    finish = Finish(token=offer.token, outcome="completed", reason="finished", result={"items": []})
    for _ in range(3):  # the answer was lost, so the worker says it again
        assert offer.token in (await pipe.worker.exchange(finishes=(finish,))).finished
    assert await pipe.states(flow) == {"a": "completed", "b": "queued"}
    told = await live_feed.events_after(pipe.lab.core, pipe.lab.admin, 0, task_id=flow.tasks[1].id)
    assert [event.kind for event in told] == ["task.pending", "task.queued"]


async def test_fault_33_every_task_keeps_the_result_that_its_own_token_brought(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("alice"), stage("bob"))
    first, second = await pipe.take()
    await pipe.worker.exchange(
        finishes=tuple(
            Finish(token=offer.token, outcome="completed", reason="finished", result={"items": [offer.name]})
            for offer in (second, first)
        )
    )
    for name in ("alice", "bob"):
        task = await pipe.task(flow, name)
        assert task.result is not None
        assert (task.result["task_id"], task.result["result"]["items"]) == (task.id, [name])


async def test_a_lost_worker_ends_what_waits_for_its_last_try(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("a"), stage("b", "a"))
    for _ in range(6):
        (offer,) = await pipe.take()
        assert offer.name == "a"
        pipe.worker.holding.clear()
        await pipe.worker.register()  # without the task: it is lost
    assert await pipe.states(flow) == {"a": "failed", "b": "failed"}


async def test_a_training_stage_that_failed_goes_on_from_its_checkpoint(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("first"), stage("train", "first", spec=TRAIN), stage("after", "train"))
    (offer,) = await pipe.take()
    await pipe.end(offer, {"items": ["found"]})
    (offer,) = await pipe.take()
    await pipe.lab.journal(offer.token, "a", [launched(), saved(8)])
    await upload(pipe.lab, offer, 8)
    await pipe.end(offer, "bad_input")
    made = await reruns.resume(pipe.lab.core, pipe.lab.admin, offer.task_id)
    assert (made.name, made.parent_task_id, made.status) == ("train", offer.task_id, "queued")
    (again,) = await pipe.take()
    assert again.spec["data"]["prompts"] == ["found", "two"]
    assert again.resume is not None
    assert (again.resume.step, again.resume.from_task) == (8, offer.task_id)
    assert (await pipe.states(flow))["after"] == "failed"


async def test_an_agent_that_polls_is_told_what_references_stood_for(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("first"), stage("train", "first", spec=TRAIN))
    (offer,) = await pipe.take()
    await pipe.end(offer, {"items": ["found"]})
    train = flow.tasks[1].id
    job = await pipe.lab.core.read(lambda c: polled(c, task_rows.by_ids(c, [train])[train]))
    assert job.spec is not None
    assert job.spec["data"]["prompts"] == ["found", "two"]


async def test_what_waits_for_a_paused_stage_waits_on_and_runs_after_an_early_stop(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("first"), stage("train", "first", spec=TRAIN), stage("after", "train"))
    (offer,) = await pipe.take()
    await pipe.end(offer, {"items": ["found"]})
    (offer,) = await pipe.take()
    await control.pause(pipe.lab.core, pipe.lab.admin, offer.task_id)
    await pipe.worker.finish(offer.token, "paused", "paused")
    assert await pipe.states(flow) == {"first": "completed", "train": "paused", "after": "pending"}
    assert (await pipe.task(flow, "after")).why == "waiting for train (paused)."
    await reruns.resume(pipe.lab.core, pipe.lab.admin, offer.task_id)
    (offer,) = await pipe.take()
    await pipe.worker.finish(offer.token, "completed", "stopped_early", result={"ok": True})
    await pipe.run()
    assert await pipe.states(flow) == {"first": "completed", "train": "completed", "after": "completed"}


async def test_a_stage_that_waits_may_name_pushed_data(pipe: Pipelines) -> None:
    lab = pipe.lab
    rows = await lab.publish(lab.admin, "rows", b'{"text": "a"}\n')
    train = {"taskType": "lora_sft", "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}}}
    flow = await pipe.submit(stage("first"), stage("train", "first", spec={**train, "data": {"artifact": "rows"}}))
    (first,) = await pipe.take()
    with pytest.raises(ConflictError, match="is read by task-"):
        await artifacts.remove(lab.core, lab.admin, rows.id)
    await pipe.end(first, {"ok": True})
    (offer,) = await pipe.take()
    assert offer.inputs["data.artifact"].digest == rows.digest
    await pipe.end(offer, {"ok": True})
    assert await pipe.states(flow) == {"first": "completed", "train": "completed"}
