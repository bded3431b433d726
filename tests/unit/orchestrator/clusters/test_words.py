"""What is said of tasks that get their nodes from an engine: before the submit, at it, and while they wait."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.orchestrator.clusters.fake import ON_SLURM, Field, on_slurm
from tests.unit.orchestrator.lab import TRAIN, Lab
from tunefleet.errors import SpecError
from tunefleet.orchestrator.fleet.engines import Engines
from tunefleet.orchestrator.preflight import explain
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import SubmitRequest

ON_RAY = ON_SLURM.replace("slurm", "ray")
BOTH = """apiVersion: tunefleet/v1
metadata: {name: both}
spec:
  stages:
    - name: one
      spec: {taskType: echo, data: {type: list, items: [a]}}
    - name: two
      dependsOn: [one]
      spec:
        taskType: lora_sft
        engine: slurm
        model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
        data: {prompts: ["${one.result.count}"]}
"""


async def said(lab: Lab, document: str) -> Any:
    return await explain.of_document(lab.core, lab.admin, SubmitRequest(document=document))


async def test_before_the_submit_no_worker_is_named_that_would_not_run_it(field: Field) -> None:
    await field.lab.online("plain")
    for document in (ON_SLURM, BOTH):
        told = (await said(field.lab, document)).forecasts[-1]
        assert (told.kind, told.worker_id, told.workers) == ("lora_sft", None, ())
        assert told.why == "gets nodes from slurm, with its own worker on each"
    assert (await said(field.lab, TRAIN)).forecasts[0].worker_id == "plain"


@pytest.mark.parametrize("document", [ON_RAY, BOTH.replace("slurm", "ray")])
async def test_an_engine_that_is_not_asked_is_a_fault_before_the_submit_and_at_it(field: Field, document: str) -> None:
    reply = await said(field.lab, document)
    assert not reply.ok
    (fault,) = reply.faults
    assert (fault.message, fault.hint) == (
        "Ray is not enabled on this server",
        "an admin sets TUNEFLEET_RAY_ADDRESS to the cluster's dashboard",
    )
    assert document.splitlines()[fault.line - 1].strip() == "engine: ray"
    with pytest.raises(SpecError, match="Ray is not enabled"):
        await field.lab.submit(document)


@pytest.mark.parametrize(
    ("engine", "gpu", "message", "hint"),
    [
        ("slurm", "A100", "Slurm uses its own GPU names and cannot select the type A100", "gpu_type: NAME"),
        ("ray", "RTX 4090", None, None),
        ("{type: slurm, gpu_type: a100}", "A100", None, None),
        ("{type: slurm, partition: a100}", "A100", None, None),
        ("slurm", "any", None, None),
        ("ray", "h100", None, None),
    ],
)
async def test_a_type_of_gpu_that_the_engine_is_not_told_is_a_fault(
    field: Field, engine: str, gpu: str, message: str | None, hint: str
) -> None:
    field.lab.core.put_state(Engines({"slurm": field.slurm, "ray": field.slurm}))
    document = TRAIN.rstrip() + f"\n  engine: {engine}\n  resources: {{hardware: {{gpu: {{type: {gpu}}}}}}}\n"
    reply = await said(field.lab, document)
    assert [fault.message for fault in reply.faults] == ([] if message is None else [message])
    if message is None:
        await field.lab.submit(document)
        return
    assert hint in reply.faults[0].hint
    assert reply.faults[0].line == len(document.splitlines())
    with pytest.raises(SpecError, match=message):
        await field.lab.submit(document)


async def test_a_type_of_gpu_is_no_fault_where_an_admin_chooses_the_nodes(field: Field) -> None:
    field.lab.core.put_state(Engines({"slurm": field.slurm}, chosen=True))
    document = on_slurm("resources: {hardware: {gpu: {type: A100}}}")
    assert (await said(field.lab, document)).ok
    await field.lab.submit(document)


async def test_a_submit_warns_of_no_missing_workers(field: Field) -> None:
    made = await workflows.submit(field.lab.core, field.lab.admin, SubmitRequest(document=ON_SLURM, strict=True))
    assert made.warnings == ()


async def test_why_names_the_workers_of_the_job_alone(field: Field) -> None:
    await field.lab.online("plain")
    task_id = await field.asked()
    assert (await explain.of_task(field.lab.core, field.lab.admin, task_id)).workers == ()
    (worker,) = await field.nodes()
    told = (await explain.of_task(field.lab.core, field.lab.admin, task_id)).workers
    assert [(each.worker_id, each.verdict) for each in told] == [(worker.id, "fits")]
