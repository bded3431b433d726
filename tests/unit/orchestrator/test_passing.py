"""Artifacts that the tasks of a workflow hand to each other."""

from __future__ import annotations

from typing import Any

from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.pipelines import Pipelines, stage
from tunefleet.artifacts import manifest_digest
from tunefleet.orchestrator.storage import artifacts
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import ArtifactCreate

TRAIN: dict[str, Any] = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
    "data": {"prompts": ["one"]},
}


async def test_the_adapter_that_a_later_stage_loads_stands_at_its_edge(lab: Lab) -> None:
    pipe = Pipelines(lab, await lab.online())
    load = {"checkpoint": {"load": {"taskId": "${first.task_id}"}}}
    made = await pipe.submit(
        stage("first", spec=TRAIN), stage("second", spec={**TRAIN, **load}), stage("third", "first", spec=TRAIN)
    )
    ids = {task.name: task.id for task in made.tasks}
    (offer,) = await pipe.take()
    who = await lab.attempt(offer.token)
    for name, kind in (("checkpoint-1", "checkpoint"), ("final_lora", "adapter")):
        entry = await lab.upload(who, name.encode())
        body = ArtifactCreate(name=name, kind=kind, files=(entry,), digest=manifest_digest([entry]))
        await artifacts.publish(lab.core, who, body, task_id=offer.task_id)
    edges = {edge.target: edge for edge in await workflows.edges(lab.core, lab.admin, made.id)}
    assert edges[ids["second"]].artifacts == ()
    await pipe.end(offer, {"ok": True})
    edges = {edge.target: edge for edge in await workflows.edges(lab.core, lab.admin, made.id)}
    (passed,) = edges[ids["second"]].artifacts
    assert (passed.name, passed.kind, passed.task_id, passed.size_bytes) == ("final_lora", "adapter", ids["first"], 10)
    assert edges[ids["second"]].values == ("task_id",)
    assert (edges[ids["third"]].source, edges[ids["third"]].artifacts) == (ids["first"], ())
