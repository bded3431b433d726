"""Tasks that load what another one, named by its id alone, has left: they wait for it, and it is kept for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.pipelines import Node, Pipelines, stage
from tunefleet.artifacts import manifest_digest
from tunefleet.errors import ConflictError, SpecError
from tunefleet.orchestrator.storage import artifacts
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.workflows import prune, reruns, workflows
from tunefleet.schemas.api import ArtifactCreate
from tunefleet.schemas.worker_link import Offer

TRAIN: dict[str, Any] = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
    "data": {"prompts": ["one"]},
}


@pytest.fixture
async def pipe(lab: Lab) -> Pipelines:
    return Pipelines(lab, await lab.online())


def training(name: str, *upstream: str, **load: Any) -> Node:
    more = {"checkpoint": {"load": load}} if load else {}
    return stage(name, *upstream, spec={**TRAIN, **more})


async def leave(pipe: Pipelines, offer: Offer, name: str = "final_lora") -> str:
    """Publish what a training leaves; returns the artifact's id."""
    who = await pipe.lab.attempt(offer.token)
    entry = await pipe.lab.upload(who, name.encode())
    body = ArtifactCreate(name=name, kind="adapter", files=(entry,), digest=manifest_digest([entry]))
    return (await artifacts.publish(pipe.lab.core, who, body, task_id=offer.task_id)).id


async def test_a_task_waits_for_the_one_whose_weights_it_loads_and_keeps_it(pipe: Pipelines) -> None:
    core, admin = pipe.lab.core, pipe.lab.admin
    first = await pipe.submit(training("first"))
    made = first.tasks[0].id
    (offer,) = await pipe.take()
    second = await pipe.submit(training("second", taskId=made))
    (reader,) = second.tasks
    assert (reader.status, reader.why, reader.depends_on) == ("pending", f"waiting for {made} (running).", (made,))
    left = await leave(pipe, offer)
    await pipe.end(offer, {"ok": True})
    (offer,) = await pipe.take()
    assert (offer.task_id, offer.spec["checkpoint"]["load"]) == (reader.id, {"taskId": made})
    needed = f"Run {reader.id} still needs the result"
    for verb, id_ in ((tasks.remove, made), (workflows.remove, first.id)):
        with pytest.raises(ConflictError, match=needed):
            await verb(core, admin, id_)
    with pytest.raises(ConflictError, match=f"is read by {reader.id}"):
        await artifacts.remove(core, admin, left)
    assert (await prune.run(core, -1.0)).workflows == ()
    await pipe.end(offer, {"ok": True})
    assert set((await prune.run(core, -1.0)).workflows) == {first.id, second.id}


async def test_a_task_whose_weights_never_come_to_be_ends_its_readers(pipe: Pipelines) -> None:
    first = await pipe.submit(training("first", task_id="an older system's folder"))
    made = first.tasks[0].id
    second = await pipe.submit(training("second", taskId=made), training("third", "second"))
    await pipe.run({"first": "bad_input"})
    assert await pipe.states(second) == {"second": "failed", "third": "failed"}
    assert (await pipe.task(second, "second")).error == f"{made} ({made}) failed: first broke."


async def test_adapters_are_kept_as_weights_are(pipe: Pipelines) -> None:
    first = await pipe.submit(training("first"))
    await pipe.run({"first": {"ok": True}})
    made = first.tasks[0].id
    answer = {"taskType": "inference", "data": {"type": "list", "items": ["a"]}, "checkpoint": {"load": {"path": "/m"}}}
    model = {**TRAIN["model"], "adapters": [{"type": "lora", "taskId": made, "url": "https://example.org/a.tar.gz"}]}
    second = await pipe.submit(stage("second", spec={**answer, "model": model}))
    assert second.tasks[0].depends_on == (made,)
    assert (await prune.run(pipe.lab.core, -1.0)).workflows == ()


async def test_an_id_that_comes_out_of_a_result_keeps_what_its_task_has_left(pipe: Pipelines) -> None:
    first = await pipe.submit(training("first"))
    (offer,) = await pipe.take()
    await leave(pipe, offer)
    await pipe.end(offer, {"ok": True})
    pipe.worker.want = {"light": 1}
    second = await pipe.submit(stage("choose"), training("second", "choose", taskId="${choose.result.best}"))
    await pipe.run({"choose": {"best": offer.task_id}})
    assert (await pipe.states(second))["second"] == "queued"
    assert (await prune.run(pipe.lab.core, -1.0)).workflows == ()
    await workflows.cancel(pipe.lab.core, pipe.lab.admin, second.id)
    assert set((await prune.run(pipe.lab.core, -1.0)).workflows) == {first.id, second.id}


async def test_a_repeated_task_keeps_what_its_links_lead_to(pipe: Pipelines) -> None:
    core, admin = pipe.lab.core, pipe.lab.admin
    rows = {"data": {"jsonl": {"url": "${first.result.rows_url}", "prompt_field": "p", "response_field": "r"}}}
    second = {**TRAIN, **rows, "checkpoint": {"load": {"type": "http", "url": "${first.result.url}"}}}
    flow = await pipe.submit(stage("first"), stage("second", "first", spec=second))
    (offer,) = await pipe.take()
    base = f"http://server:8000/api/v1/results/{offer.task_id}/files"
    await pipe.end(offer, {"url": f"{base}/final_lora.tar.gz?expires=1", "rows_url": f"{base}/rows.jsonl?expires=1"})
    await pipe.run({"second": "bad_input"})
    again = await reruns.retry(core, admin, (await pipe.task(flow, "second")).id)
    (reader,) = again.tasks
    assert (reader.status, reader.depends_on) == ("queued", (offer.task_id,))
    with pytest.raises(ConflictError, match=f"Run {reader.id} still needs the result"):
        await workflows.remove(core, admin, flow.id)
    assert (await prune.run(core, -1.0)).workflows == ()
    elsewhere = {"load": {"type": "http", "url": "https://example.org/api/v1/results/task-none/files/a.tar.gz"}}
    other = await pipe.submit(stage("other", spec={**TRAIN, "checkpoint": elsewhere}))
    assert other.tasks[0].status == "queued", "of a server that this one does not know"


async def test_weights_that_are_nowhere_are_refused_at_the_submit(pipe: Pipelines) -> None:
    with pytest.raises(SpecError, match="second loads files of task-none, which does not exist") as no:
        await pipe.submit(training("second", taskId="task-none"))
    assert no.value.faults[0].path == "spec.graph.nodes.0.spec.checkpoint.load.taskId"
    for beside in ({"path": "/weights"}, {"type": "http", "url": "https://example.org/a.tar.gz"}):
        assert (await pipe.submit(training("second", taskId="task-none", **beside))).tasks[0].status == "queued"
    elsewhere = {"type": "http", "base_url": "https://example.org", "filename": "final_lora.tar.gz"}
    assert (await pipe.submit(training("second", taskId="task-none", **elsewhere))).tasks[0].status == "queued"


async def test_what_a_failed_task_has_left_is_taken_and_what_it_has_not_is_refused(pipe: Pipelines) -> None:
    bad = await pipe.submit(training("bad"))
    made = bad.tasks[0].id
    (offer,) = await pipe.take()
    await pipe.end(offer, "bad_input")
    with pytest.raises(SpecError, match="which is already failed"):
        await pipe.submit(training("second", taskId=made))
    again = await reruns.retry(pipe.lab.core, pipe.lab.admin, made)
    (offer,) = await pipe.take()
    await leave(pipe, offer)
    await pipe.end(offer, "bad_input")
    await workflows.remove(pipe.lab.core, pipe.lab.admin, bad.id)
    reader = await pipe.submit(training("second", taskId=offer.task_id))
    assert (reader.tasks[0].status, reader.tasks[0].depends_on) == ("queued", ())
    assert (await prune.run(pipe.lab.core, -1.0)).workflows == ()
    await workflows.cancel(pipe.lab.core, pipe.lab.admin, reader.id)
    assert set((await prune.run(pipe.lab.core, -1.0)).workflows) == {again.id, reader.id}
