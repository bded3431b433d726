"""`push`: which targets are valid, which options go with which, and what a worker needs for them."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import SpecError
from tunefleet.orchestrator.tasks.spec_columns import requirement_of
from tunefleet.spec import Fetch, fetches, load_task_spec, parse_workflow
from tunefleet.spec.documents.paths import RESULT

HUB = "hf://org/name"
BUCKET = "s3://models/daily"
KEYS = {"access_key": "${secret:KEY}", "secret_key": "${secret:SECRET}"}


def spec(push: dict[str, Any], **load: Any) -> dict[str, Any]:
    return {"taskType": "push", "checkpoint": {"load": load or {"taskId": "task-1"}}, "push": push}


@pytest.mark.parametrize(
    ("push", "path", "says"),
    [
        ({}, "push.to", "is required"),
        ({"to": "./shared/model"}, "push.to", "is a folder"),
        ({"to": "/srv/models"}, "push.to", "is a folder"),
        ({"to": "hf://name"}, "push.to", "is not a publishing target"),
        ({"to": "hf://org/a--b"}, "push.to", "contains '--'"),
        ({"to": "hf://org/name.git"}, "push.to", "ends with .git"),
        ({"to": "https://huggingface.co/org/name"}, "push.to", "is not a publishing target"),
        ({"to": "s3://No_Bucket/x", **KEYS}, "push.to", "is not a valid bucket URL"),
        ({"to": "s3://models/../x", **KEYS}, "push.to", "is not a valid bucket URL"),
        ({"to": BUCKET}, "push.access_key", "is required with a bucket"),
        ({"to": BUCKET, "access_key": "AKIA", "secret_key": "x"}, "push.access_key", "would be visible to everyone"),
        ({"to": BUCKET, "revision": "v1", **KEYS}, "push.revision", "is only for the Hub"),
        ({"to": BUCKET, "private": True, **KEYS}, "push.private", "is only for the Hub"),
        ({"to": BUCKET, "hf_token": "${secret:T}", **KEYS}, "push.hf_token", "is only for the Hub"),
        ({"to": HUB, **KEYS}, "push.access_key", "is only for a bucket"),
        ({"to": HUB, "hf_token": "hf_abc"}, "push.hf_token", "would be visible to everyone"),
        ({"to": HUB, "revision": "../main"}, "push.revision", "is not a valid branch"),
    ],
)
def test_what_cannot_work_is_found_at_submit(push: dict[str, Any], path: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_task_spec(spec(push))
    assert any(fault.path == f"spec.{path}" and says in fault.message for fault in caught.value.faults), caught.value


def test_there_must_be_something_to_publish() -> None:
    with pytest.raises(SpecError, match=r"checkpoint"):
        load_task_spec({"taskType": "push", "push": {"to": HUB}})


@pytest.mark.parametrize(
    ("push", "features", "secrets"),
    [
        ({"to": HUB}, ("hub",), ()),
        ({"to": f"{HUB}/"}, ("hub",), ()),
        ({"to": HUB, "hf_token": "${secret:T}"}, ("huggingface_hub",), ("T",)),
        ({"to": BUCKET, **KEYS}, ("s3",), ("KEY", "SECRET")),
    ],
)
def test_a_worker_needs_what_the_target_needs_and_no_gpu(
    push: dict[str, Any], features: tuple[str, ...], secrets: tuple[str, ...]
) -> None:
    whole = spec(push) | {"resources": {"hardware": {"gpu": {"count": 1, "type": "A100"}}}}
    need = requirement_of(load_task_spec(whole))
    assert (need.features, need.secrets, need.gpu_count) == (features, secrets, 0)


def test_the_files_of_a_task_come_with_its_result_which_may_be_missing() -> None:
    load = {"taskId": "task-1", "filename": "model-q8_0.gguf"}
    assert fetches(load_task_spec(spec({"to": HUB}, **load))) == [
        Fetch("checkpoint.load", None, "task-1", "model-q8_0.gguf"),
        Fetch(RESULT, None, "task-1", "responses.json", optional=True),
    ]
    (only,) = fetches(load_task_spec(spec({"to": HUB}, **load, base_url="http://other:8000")))
    assert only.base_url == "http://other:8000"


def test_it_is_the_last_stage_of_a_workflow() -> None:
    text = """
apiVersion: tunefleet/v1
metadata: {name: w}
spec:
  stages:
    - name: train
      spec: {taskType: lora_sft, model: {source: {identifier: m}}, data: {prompts: [a]}}
    - name: merged
      spec:
        taskType: merge
        model: {source: {identifier: m}, adapters: [{taskId: "${train.task_id}"}]}
    - name: publish
      spec:
        taskType: push
        checkpoint: {load: {taskId: "${merged.task_id}"}}
        push: {to: "hf://org/name"}
    - name: note
      spec: {taskType: echo, data: {type: list, items: ["${publish.result.url}"]}}
"""
    tasks = {task.name: task for task in parse_workflow(text).tasks}
    assert tasks["publish"].depends_on == ("merged",)
    onward = 'taskType: push, push: {to: "hf://a/b"}, checkpoint: {load: {taskId: "${publish.task_id}"}}'
    with pytest.raises(SpecError, match="produces no model"):
        parse_workflow(text.replace('taskType: echo, data: {type: list, items: ["${publish.result.url}"]}', onward))
