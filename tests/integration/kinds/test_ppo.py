"""`taskType: ppo` through a real worker, in its own environment: paused, resumed, killed, refused, and the example."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tunefleet.runtime import envs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.kinds.conftest import Bench

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "workflows" / "ppo.yaml"
PROMPTS = ["Tom has three apples and", "A shop sells pens for", "Anna has a dozen eggs.", "Count with me:"]


@pytest.fixture(scope="module", autouse=True)
def _environment(missing: Callable[[str], None]) -> None:
    if (reason := envs.reason("ppo")) is not None:
        missing(reason)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.fakes.reward_model import make

    return make(tmp_path_factory.mktemp("judge"))


def spec(judge: Path | str, **training: Any) -> dict[str, Any]:
    return {
        "taskType": "ppo",
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "data": {"prompts": PROMPTS},
        "reward_model": {"identifier": str(judge), "type": "sentiment"},
        "generation": {"max_new_tokens": 8, "stop": ["\n"]},
        "training": {
            "steps": 8,
            "batch_size": 4,
            "ppo_epochs": 2,
            "num_mini_batches": 2,
            "learning_rate": 3e-4,
            "logging_steps": 1,
            "save_steps": 1,
            "save_total_limit": 3,
            **training,
        },
    }


def test_a_training_is_paused_resumed_and_killed_and_comes_to_the_end_that_it_would_have_had(
    bench: Bench, judge: Path
) -> None:
    document = {**spec(judge), "retry": {"max_attempts": 3, "backoff_s": 0}}
    straight = bench.submit(document)["task"]
    (task_id,) = bench.submit(document).values()
    folder = bench.folder(task_id)

    def step() -> int:
        found = [int(path.parent.name.rpartition("-")[2]) for path in folder.glob("checkpoints/*/manifest.json")]
        return max(found, default=0)

    bench.until(lambda: step() >= 2, task_id)
    bench.client.tasks.pause(task_id)
    bench.until(lambda: bench.client.tasks.get(task_id).status == "paused", task_id)
    paused = step()
    assert paused < 8
    bench.client.tasks.resume(task_id)
    bench.until(lambda: step() > paused, task_id)
    os.kill(json.loads((folder / "process.json").read_text())["pid"], signal.SIGKILL)
    found, expected = bench.result(task_id), bench.result(straight)

    assert (found["steps"], found["dataset_size"], found["early_stopped"]) == (8, 4, False)
    assert found["resume_from_path"] is not None
    assert expected["resume_from_path"] is None
    assert found["used"]["versions"]["trl"] == "1.12.0"
    assert found["reward_model"]["positive_label"] == "POSITIVE"
    assert found["samples"] == expected["samples"]
    assert found["rewards"] == expected["rewards"]
    weights = [bench.files(each)["final_model/model.safetensors"].sha256 for each in (task_id, straight)]
    assert weights[0] == weights[1], "pause, resume and kill change nothing"
    points = bench.client.tasks.metrics(task_id).points
    for name in ("reward", "kl", "loss", "value_loss", "entropy"):
        assert {point.step for point in points if name in point.values} == set(range(1, 9)), name


def test_a_reward_that_is_none_is_refused_with_the_way_out(bench: Bench, judge: Path) -> None:
    wrong = spec(judge)
    wrong["reward_model"]["positive_label"] = "happy"
    said = bench.error(wrong)
    assert "`reward_model.positive_label` is 'happy'" in said
    assert "Its labels: NEGATIVE, POSITIVE." in said


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter that makes another model of the base of the example."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from tunefleet.workloads import assets

    base = AutoModelForCausalLM.from_pretrained(assets.locate("builtin:gsm8k-llama-2m", "model"))
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks Transformers by a name that will go
def test_the_example_trains_a_judge_and_then_an_adapter_by_its_rewards_held_to_where_it_began(
    bench: Bench, adapter: Path, tmp_path: Path
) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["stages"][1]["spec"]["checkpoint"] = {"load": {"path": str(adapter)}}
    changed = tmp_path / "ppo.yaml"
    changed.write_text(yaml.safe_dump(document))
    tasks = bench.submit(changed)
    found = bench.result(tasks["policy"])
    assert found["steps"] <= 4
    assert found["kl"]["first"] == pytest.approx(0, abs=1e-4), "of the adapter that it goes on from, not of the base"
    assert found["kl"]["last"] != 0
    assert found["final_lora_path"]
    assert "final_lora/adapter_model.safetensors" in bench.files(tasks["policy"])
    assert found["used"]["optimizer_steps_a_step"] == 4
    assert found["used"]["parameters_trained"] < found["used"]["parameters"] / 2
