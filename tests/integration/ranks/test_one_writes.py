"""Of several ranks one writes what a training leaves."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.integration.ranks.conftest import end, job
from tests.libraries import required
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import Supervisor

required("torch")
pytestmark = [pytest.mark.torch, pytest.mark.proof, pytest.mark.timeout(600)]

SPEC: dict[str, Any] = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
    "data": {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer", "max_samples": 16},
    "lora": {"r": 2},
    "training": {
        "max_steps": 2,
        "batch_size": 2,
        "max_seq_length": 64,
        "save_steps": 1,
        "parallelism": "ddp",
        "ddp_find_unused_parameters": True,
    },
    "output": {"destination": {"type": "http"}},
    "resources": {"processes": 2, "hardware": {"gpu": {"count": 0}}},
}
RESULTS = ("responses.json", "final_lora", ".final_lora", "baseline.json", "manifest.json", "status.json", "journal")


def test_fault_23_only_the_first_rank_writes_results(supervisor: Supervisor) -> None:
    handle = supervisor.launch(job("writers:main", **SPEC))
    assert end(handle, 240).reason is TaskReason.FINISHED
    root = handle.folder.root
    result = json.loads(handle.folder.responses_json.read_text())
    assert (result["used"]["processes"], result["used"]["parallelism"]) == (2, "ddp")
    first, second = (json.loads((root.parent / f"touched-{rank}.json").read_text()) for rank in range(2))
    assert {"responses.json", "final_lora"} <= {
        re.sub(r"(\.\d+\.\d+\.draft|\.partial)$", "", path.strip(".")) for path in first
    }
    assert list(root.glob("checkpoints/*/rng_state_1.pth")), "but each rank has a state of its own in a checkpoint"
    assert [path for path in second if path.rsplit("/", 1)[-1].startswith(RESULTS)] == []
    assert [path for path in second if not path.startswith(("checkpoints/", "ranks/", "tokens"))] == []
