"""The documents that the public systems ship as examples, field for field, are read as what they mean."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.field_trees import E1, E2, E3, E4, E5, E6, E7, E8, E9, E10
from tunefleet.spec import ConditionSpec, TaskNode, dump_task_spec, load_task_spec, parse_workflow, resolve


def tasks(text: str) -> dict[str, TaskNode]:
    return {task.name: task for task in parse_workflow(text).tasks}


def test_e1_one_training_on_two_gpus() -> None:
    (task,) = tasks(E1).values()
    assert task.spec is not None
    assert task.spec.resources.hardware.gpu is not None
    assert task.spec.resources.hardware.gpu.count == 2


def test_e2_the_second_stage_starts_from_the_firsts_adapter() -> None:
    first, second = tasks(E2).values()
    assert first.spec is not None
    assert first.depends_on == ()
    assert second.spec is None, "it has a reference"
    assert second.depends_on == ("gsm8k-stage",)
    assert second.raw["checkpoint"]["load"]["url"] == "${gsm8k-stage.result.final_lora_archive_url}"
    assert second.raw["lora"]["r"] == 16, "shared keys apply to each stage"
    assert "stages" not in second.raw


def test_e3_data_are_made_then_trained_on() -> None:
    first, second = tasks(E3).values()
    assert (first.kind, second.kind) == ("inference", "sft")
    assert first.raw["model"]["source"]["identifier"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert "vllm" not in second.raw["model"]
    assert second.depends_on == ("gsm8k-bootstrap",)


def test_e4_branches_meet_in_any_listing_order() -> None:
    found = tasks(E4)
    assert found["synthesis"].depends_on == ("branch-a", "branch-b")
    assert found["branch-a"].depends_on == found["branch-b"].depends_on == ()


def test_e5_and_e7_single_tasks_of_other_kinds() -> None:
    assert [task.kind for task in tasks(E5).values()] == ["ppo"]
    assert [task.kind for task in tasks(E7).values()] == ["rag"]


def test_e6_an_adapter_is_trained_then_used() -> None:
    train, infer = tasks(E6).values()
    assert (train.kind, infer.kind) == ("lora_sft", "inference")
    assert infer.depends_on == ("lora-train",)


def test_e8_a_condition() -> None:
    work = tasks(E8)["work"]
    assert work.condition == ConditionSpec(node="decide", field="items.0.output", equals="run-me", on_skipped="run")
    assert work.depends_on == ("decide",)
    assert "condition" not in work.raw


def test_e9_a_model_is_served() -> None:
    ((name, task),) = tasks(E9).items()
    assert (name, task.kind) == ("serve", "serve")


def test_e10_python_after_echo() -> None:
    prepare, score = tasks(E10).values()
    assert (prepare.kind, score.kind) == ("echo", "python")
    assert score.depends_on == ("prepare",), "by its place in the list"


ENVELOPE = {"task_id": "task-1", "worker_id": "w", "metadata": {}, "received_at": "2026-01-01T00:00:00Z"}
URL = "http://host:8000/api/v1/results/task-1/files"
RESULTS = {
    "gsm8k-stage": {"final_lora_archive_url": f"{URL}/final_lora.tar.gz"},
    "gsm8k-bootstrap": {"jsonl_export": {"path": "/results/task-1/artifacts/sft_pairs.jsonl", "url": f"{URL}/a.jsonl"}},
    "branch-a": {"items": [{"index": 0, "output": "Sun."}]},
    "branch-b": {"items": [{"index": 0, "output": "Cold."}]},
    "lora-train": {
        "final_lora_path": "/results/task-1/final_lora",
        "final_lora_archive_url": f"{URL}/final_lora.tar.gz",
        "task_id": "task-1",
    },
    "decide": {"items": [{"index": 0, "output": "run-me"}]},
}


@pytest.mark.parametrize(
    ("text", "name", "field", "value"),
    [
        (E2, "humaneval-stage", ("checkpoint", "load", "url"), f"{URL}/final_lora.tar.gz"),
        (E3, "sft-train", ("data", "jsonl", "url"), f"{URL}/a.jsonl"),
        (E6, "lora-infer", ("model", "adapters", 0, "taskId"), "task-1"),
        (E8, "work", ("data", "items", 1), "run-me"),
    ],
)
def test_what_refers_to_a_result_is_a_good_spec_once_that_is_there(
    text: str, name: str, field: tuple[str | int, ...], value: str
) -> None:
    envelopes = {each: {**ENVELOPE, "result": result} for each, result in RESULTS.items()}
    found: Any = dump_task_spec(load_task_spec(resolve(tasks(text)[name].raw, envelopes)))
    for part in field:
        found = found[part]
    assert found == value


def test_e4_two_columns_become_one_prompt() -> None:
    envelopes = {each: {**ENVELOPE, "result": result} for each, result in RESULTS.items()}
    data = dump_task_spec(load_task_spec(resolve(tasks(E4)["synthesis"].raw, envelopes)))["data"]
    assert data["type"] == "list"
    assert "- Supply: Sun.\n- Demand: Cold.\n" in data["items"][0]
