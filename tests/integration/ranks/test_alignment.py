"""A training on pairs over gloo: two ranks share the batch, and one writes."""

from __future__ import annotations

import json

import pytest

from tests.integration.ranks.conftest import end, job
from tests.libraries import required
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import Supervisor

required("torch")
pytestmark = [pytest.mark.torch, pytest.mark.proof, pytest.mark.timeout(600)]


def test_two_ranks_train_on_pairs_and_one_delivers(supervisor: Supervisor) -> None:
    spec = {
        "taskType": "dpo",
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "data": {"path": "builtin:gsm8k-preferences", "max_samples": 16, "eval": {"split": "test", "max_samples": 4}},
        "lora": {"r": 4, "target_modules": "all-linear"},
        "training": {
            "max_steps": 2,
            "batch_size": 2,
            "learning_rate": 1e-3,
            "max_seq_length": 224,
            "save_strategy": "no",
            "precompute_ref_log_probs": True,
        },
        "resources": {"processes": 2, "hardware": {"gpu": {"count": 0}}},
    }
    handle = supervisor.launch(job("tunefleet.workloads.preference:main", **spec))
    assert end(handle, 400).reason is TaskReason.FINISHED
    result = json.loads(handle.folder.responses_json.read_text())
    assert (result["used"]["processes"], result["used"]["batch_size"], result["steps"]) == (2, 4, 2)
    assert result["held_out"]["before"]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert result["held_out"]["after"]["loss"] != result["held_out"]["before"]["loss"]
    assert (handle.folder.root / "final_lora" / "adapter_model.safetensors").is_file()
