"""The trainings on preferences and rewards through a real worker: the examples, and a kill in the middle."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.story import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.errors import SpecError
from tunefleet.schemas.api import TaskDetail
from tunefleet.schemas.job_folder import JobFolder

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(600)]

PATIENCE_S = 500.0
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "workflows"


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Client]:
    with Client(fleet.url, fleet.key, patience_s=30) as made:
        yield made


def run(client: Client, example: str, **changes: Any) -> dict[str, TaskDetail]:
    submitted = client.submit(EXAMPLES / example, overrides=changes)
    flow = client.workflows.wait(submitted.workflow.id, timeout_s=PATIENCE_S)
    assert flow.status == "completed", [(task.name, task.error, task.why) for task in flow.tasks]
    return {task.name: client.tasks.get(task.id) for task in flow.tasks}


def result(task: TaskDetail) -> dict[str, Any]:
    assert task.result is not None
    found: dict[str, Any] = task.result["result"]
    return found


def test_pairs_teach_a_model_to_prefer_the_better_answer(client: Client, tmp_path: Path) -> None:
    (task,) = run(client, "dpo.yaml").values()
    held_out = result(task)["held_out"]
    assert held_out["before"]["loss"] == pytest.approx(0.6931, abs=1e-3), "at first it is its own reference"
    assert held_out["after"]["loss"] < held_out["before"]["loss"] - 0.05
    assert held_out["after"]["margin"] > 0.1
    names = set().union(*(point.values for point in client.tasks.metrics(task.id).points))
    assert {"loss", "rewards/accuracies", "rewards/margins", "held_out_accuracy"} <= names
    folder = client.tasks.fetch_output(task.id, "final_lora", tmp_path / "adapter")
    assert json.loads((folder / "adapter_config.json").read_text())["task_type"] == "CAUSAL_LM"


def test_every_other_kind_aligns_and_a_trained_judge_rewards(client: Client, tmp_path: Path) -> None:
    tasks = run(client, "align.yaml")
    judge = client.tasks.fetch_output(tasks["judge"].id, "final_model", tmp_path / "judge")
    assert json.loads((judge / "config.json").read_text())["architectures"] == ["LlamaForSequenceClassification"]
    points = [point.values for point in client.tasks.metrics(tasks["rewarded"].id).points if "reward" in point.values]
    assert {"rewards/exact_match/mean", "rewards/reward_model/mean"} <= points[-1].keys()
    assert points[-1]["rewards/reward_model/mean"] != 0, "the judge's head was trained, not made up"
    assert 0 <= result(tasks["judge"])["held_out"]["after"]["accuracy"] <= 1
    for name, product in (("rewarded", "final_lora"), ("by-rules", "final_lora"), ("judged", "final_lora")):
        assert result(tasks[name])[f"{product}_path"]
    assert result(tasks["odds"])["final_model_path"]


def test_a_killed_training_goes_on_and_ends_as_one(client: Client, fleet: LocalFleet) -> None:
    # Short rows and few of them: a step is to be cheap, and there are to be many.
    few = {"max_steps": 24, "save_strategy": "steps", "save_steps": 2, "batch_size": 2, "max_seq_length": 96}
    changes = {f"spec.training.{name}": value for name, value in few.items()}
    changes |= {"spec.data.max_samples": 48, "spec.data.eval.max_samples": 4}
    task_id = client.submit(EXAMPLES / "dpo.yaml", overrides=changes).task_id
    folder = fleet.results_dir() / task_id
    until(
        lambda: list((folder / "checkpoints").glob("checkpoint-*/manifest.json")), "a checkpoint", within_s=PATIENCE_S
    )
    os.kill(json.loads(JobFolder(folder).process_json.read_bytes())["pid"], signal.SIGKILL)
    ended = client.tasks.wait(task_id, timeout_s=PATIENCE_S)
    assert ended.status == "completed", (ended.error, ended.why)
    found = result(ended)
    assert found["steps"] == 24
    assert found["resume_from_path"]
    steps = [point.step for point in client.tasks.metrics(task_id).points if "loss" in point.values]
    assert steps == sorted(set(steps))


def test_rows_without_what_is_named_fail_at_once_and_say_so(client: Client) -> None:
    changes = {"spec.data.chosen_column": "better"}
    with pytest.raises(SpecError, match="has no column 'better'"):
        client.submit(EXAMPLES / "dpo.yaml", overrides=changes)
