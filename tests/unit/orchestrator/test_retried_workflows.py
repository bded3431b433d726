"""What is left of a workflow, run again: without what is computed, with changes, and once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.pipelines import Pipelines, stage
from tests.unit.orchestrator.test_loaded_tasks import TRAIN, leave, training
from tunefleet.errors import ConflictError, SpecError
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import RetryRequest, WorkflowDetail


@pytest.fixture
async def pipe(lab: Lab) -> Pipelines:
    return Pipelines(lab, await lab.online())


def reading(field: str) -> dict[str, Any]:
    return {"data": {"type": "list", "items": [field]}}


async def retry(pipe: Pipelines, flow: WorkflowDetail, **wanted: Any) -> WorkflowDetail:
    return await workflows.retry(pipe.lab.core, pipe.lab.admin, flow.id, RetryRequest(**wanted))


async def undelivered(pipe: Pipelines, token: str) -> None:
    await pipe.worker.finish(token, "failed", "delivery_failed", error="It was refused.", result={"items": ["A"]})


async def test_a_stage_that_failed_only_to_be_delivered_is_not_run_again(pipe: Pipelines) -> None:
    flow = await pipe.submit(
        stage("first"), stage("second", "first", spec=reading("${first.result.items.0}")), stage("third", "second")
    )
    (offer,) = await pipe.take()
    await undelivered(pipe, offer.token)
    assert await pipe.states(flow) == {"first": "failed", "second": "failed", "third": "failed"}
    again = await retry(pipe, flow)
    first = flow.tasks[0].id
    told = (
        f"first is not run again: its result is on the server (to deliver it: `tunefleet artifacts deliver {first}`)."
    )
    assert again.warnings == (told,)
    assert await pipe.states(again) == {"second": "queued", "third": "pending"}
    await pipe.run({"second": "bad_input"})
    assert pipe.specs["second"]["data"]["items"] == ["A"]
    third = await retry(pipe, again)
    assert set(await pipe.states(third)) == {"second", "third"}, "what the first retry took over is taken over again"
    await pipe.run()
    assert (await pipe.see(third)).status == "completed"
    assert pipe.ran == ["first", "second", "second", "third"]


async def test_later_documents_take_what_an_undelivered_task_has_left(pipe: Pipelines) -> None:
    flow = await pipe.submit(training("first"))
    (offer,) = await pipe.take()
    await leave(pipe, offer)
    waiting = await pipe.submit(stage("early", external=[offer.task_id]))
    pipe.lab.clock.advance(1.0)
    await undelivered(pipe, offer.token)
    assert await pipe.states(waiting) == {"early": "failed"}, "who waits when it fails, fails with it"
    later = await pipe.submit(
        stage("late", external=[offer.task_id], spec=reading(f"${{{offer.task_id}.result.items.0}}")),
        stage("on", spec={**TRAIN, "checkpoint": {"load": {"taskId": offer.task_id}}}),
    )
    assert await pipe.states(later) == {"late": "queued", "on": "queued"}
    await pipe.run({"on": {"ok": True}})
    assert pipe.specs["late"]["data"]["items"] == ["A"]
    with pytest.raises(ConflictError, match=f"{flow.id} has no task left to run") as caught:
        await retry(pipe, flow)
    assert f"tunefleet artifacts deliver {offer.task_id}" in str(caught.value.hint)


async def test_a_task_without_a_stored_result_is_run_again(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("first"), stage("second", "first"))
    await pipe.run({"first": "delivery_failed"})
    with pytest.raises(SpecError, match="which is already failed"):
        await pipe.submit(stage("late", external=[flow.tasks[0].id]))
    assert set(await pipe.states(await retry(pipe, flow))) == {"first", "second"}


async def test_a_mistyped_reference_is_mended_without_another_run_of_what_is_there(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("first"), stage("second", "first", spec=reading("${first.result.itmes.0}")))
    await pipe.run()
    assert (await pipe.task(flow, "second")).reason == "bad_input"
    right = "${first.result.items.0}"
    for wrong in ("graph.nodes.first.spec.data.items", "graph.nodes.0.spec.data.items"):
        with pytest.raises(ConflictError, match="changes first, which is not run again"):
            await retry(pipe, flow, overrides={wrong: ["x"]})
    with pytest.raises(SpecError, match="itemz"):
        await retry(pipe, flow, overrides={"graph.nodes.second.spec.data.itemz": [right]})
    again = await retry(pipe, flow, overrides={"graph.nodes.second.spec.data.items.0": right})
    assert right in again.document
    await pipe.run()
    assert await pipe.states(again) == {"second": "completed"}
    assert pipe.specs["second"]["data"]["items"] == ["first"]
    assert pipe.ran == ["first", "second"]


async def test_a_workflow_is_retried_once_unless_the_retry_fails_or_more_is_asked_for(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("only"))
    await pipe.run({"only": "bad_input"})
    second = await retry(pipe, flow)
    with pytest.raises(ConflictError, match=f"was retried as {second.id}, which is running") as caught:
        await retry(pipe, flow)
    assert f"tunefleet retry --again {flow.id}" in str(caught.value.hint)
    await pipe.run({"only": "bad_input"})
    third = await retry(pipe, second)
    await pipe.run()
    seen = await pipe.see(flow)
    assert seen.retried_as is not None
    assert (seen.retried_as.id, seen.retried_as.status) == (third.id, "completed"), "the last of all retries"
    assert (await pipe.see(third)).retried_as is None
    for each in (flow, second):
        with pytest.raises(ConflictError, match=f"was retried as {third.id}, which has completed"):
            await retry(pipe, each)
    await retry(pipe, second, again=True)
    await pipe.run()
    await workflows.remove(pipe.lab.core, pipe.lab.admin, third.id)
    assert (await pipe.see(second)).retried_as is not None
