"""SIGKILL in the middle of each kind of alignment but `dpo`, which the suite kills: `make kill-matrix` plays it."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.acceptance.story import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.job_folder import JobFolder

if "TUNEFLEET_CHAOS_ROUNDS" not in os.environ:
    pytest.skip("played by `make kill-matrix`", allow_module_level=True)

pytestmark = [pytest.mark.proof, pytest.mark.torch]

PATIENCE_S = 500.0
STEPS = 12
PAIRS = {"path": "builtin:gsm8k-preferences", "separator": "\n", "max_samples": 32}
PROMPTS = {"path": "builtin:gsm8k", "prompt_column": "question", "separator": "\n", "max_samples": 16}
DRAWN = {"rewards": [{"type": "length", "max_tokens": 4}], "generation": {"max_new_tokens": 8}}


@pytest.mark.parametrize("kind", ["kto", "orpo", "reward", "grpo", "rloo"])
def test_a_killed_training_goes_on_and_ends_as_one(kind: str, fleet: LocalFleet) -> None:
    drawn = kind in {"grpo", "rloo"}
    spec: dict[str, Any] = {
        "taskType": kind,
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "data": PROMPTS if drawn else PAIRS,
        "lora": {"r": 4, "target_modules": "all-linear"},
        "training": {
            "max_steps": STEPS,
            "batch_size": 4,
            "max_seq_length": 160,
            "logging_steps": 1,
            "save_strategy": "steps",
            "save_steps": 1,
            **({"num_generations": 2} if drawn else {}),
        },
        **(DRAWN if drawn else {}),
    }
    document = json.dumps({"apiVersion": "tunefleet/v1", "metadata": {"name": kind}, "spec": spec})
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        task_id = client.submit(document).task_id
        folder = fleet.results_dir() / task_id
        until(
            lambda: list((folder / "checkpoints").glob("checkpoint-*/manifest.json")),
            "a checkpoint",
            within_s=PATIENCE_S,
        )
        os.kill(json.loads(JobFolder(folder).process_json.read_bytes())["pid"], signal.SIGKILL)
        ended = client.tasks.wait(task_id, timeout_s=PATIENCE_S)
        assert ended.status == "completed", (ended.error, ended.why)
        assert ended.result is not None
        found = ended.result["result"]
        assert found["steps"] == STEPS
        assert found["resume_from_path"]
        steps = [point.step for point in client.tasks.metrics(task_id).points if "loss" in point.values]
        assert steps == list(range(1, STEPS + 1))
