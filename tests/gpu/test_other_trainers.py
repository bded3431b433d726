"""Axolotl, LLaMA-Factory and Unsloth train for real: each needs its environment, and all but LLaMA-Factory a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunefleet.runtime import envs
from tunefleet.schemas.job_folder import Job

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(1800)]

STEPS = 8
SPEC = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
    "data": {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer", "max_samples": 64,
             "eval": {"split": "test[:8]"}},
    "lora": {"r": 4, "alpha": 8, "target_modules": "all-linear"},
    "training": {"max_steps": STEPS, "max_seq_length": 128, "learning_rate": 3e-3, "logging_steps": 2,
                 "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4},
}  # fmt: skip


@pytest.mark.parametrize("trainer", ["axolotl", "llamafactory", "unsloth"])
def test_a_trainer_trains_reports_and_leaves_its_adapter(trainer: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if trainer != "llamafactory" and not torch.cuda.is_available():
        pytest.skip(f"{trainer} needs a GPU")
    reason = envs.reason(trainer)
    if reason is not None:
        pytest.skip(reason)
    job = Job(
        job_id="task-1", task_id="task-1", attempt=1, launch="first", kind="lora_sft", name="theirs",
        program="tunefleet.workloads.external_trainers:main", spec=SPEC | {"trainer": trainer},
    )  # fmt: skip
    (tmp_path / "job.json").write_text(job.model_dump_json())
    with (tmp_path / "train.log").open("wb") as log:
        command = [sys.executable, "-m", "tunefleet.workloads.entrypoint", str(tmp_path)]
        code = subprocess.run(command, stdout=log, stderr=log, env=dict(os.environ), check=False).returncode
    said = (tmp_path / "train.log").read_text(errors="replace")[-8000:]
    assert code == 0, said
    result = json.loads((tmp_path / "responses.json").read_bytes())
    assert (result["steps"], result["trainer"]["name"]) == (STEPS, trainer), said
    assert (tmp_path / "final_lora" / "adapter_model.safetensors").is_file()
    (journal,) = (tmp_path / "journal").glob("*.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    losses = [each["values"]["loss"] for each in records if each["type"] == "metric" and "loss" in each["values"]]
    assert len(losses) == STEPS // 2, "what it logged is in the journal: it was attached"
    assert losses[-1] < losses[0]
    assert [each["step"] for each in records if each["type"] == "checkpoint"][:2] == [4, 8]
