"""The documents that the public systems ship as examples, field for field, are read as what they mean."""

from __future__ import annotations

import pytest

from tests.unit.spec.field_trees import E1, E2, E3, E4, E5, E6, E7, E8, E9, E10
from tunefleet.errors import SpecError
from tunefleet.spec import ConditionSpec, TaskNode, parse_workflow


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
    assert second.raw["lora"]["r"] == 16, "what stands beside the stages belongs to each of them"
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
    assert work.condition == ConditionSpec(node="decide", field="items.0.output", equals="run-me")
    assert work.depends_on == ("decide",)
    assert "condition" not in work.raw


def test_e9_serving_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="'serve' tasks are not available"):
        parse_workflow(E9)


def test_e10_python_after_echo() -> None:
    prepare, score = tasks(E10).values()
    assert (prepare.kind, score.kind) == ("echo", "python")
    assert score.depends_on == ("prepare",), "by its place in the list"
