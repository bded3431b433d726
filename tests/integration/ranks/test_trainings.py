"""Ranks over gloo: commands reach every one, a lost one ends the job, and the recipe trains on two."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ranks.conftest import end, job
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import JobHandle, Supervisor
from tunefleet.spec import TrainingData


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global AutoModelForCausalLM, Encoder, base_model, load_file, open_portions, tokenize, torch
    pytest.importorskip("torch")

    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from tunefleet.workloads.common import base_model
    from tunefleet.workloads.data.sources import open_portions
    from tunefleet.workloads.data.tokenization import Encoder, tokenize


pytestmark = [pytest.mark.torch, pytest.mark.proof, pytest.mark.timeout(600)]

PROGRAM = "rank_program:main"


def left(handle: JobHandle, name: str) -> Any:
    return json.loads((handle.folder.root / f"{name}.json").read_text())


def test_ranks_that_never_wait_for_each_other_act_at_the_same_steps(supervisor: Supervisor) -> None:
    """Two of them, one of which is lost in the end while the other waits for it; and three, then without a store."""

    def start(name: str, size: int, **options: Any) -> JobHandle:
        return supervisor.launch(
            job(PROGRAM, job_id=name, processes=size, do="loop", steps=400, seed=random.random(), **options)
        )

    handles = {2: start("two", 2, lost=1), 3: start("three", 3)}
    ends = {size: end(handle, 120) for size, handle in handles.items()}
    for size, handle in handles.items():
        acted = left(handle, "acted")
        assert acted == [acted[0]] * size
        asked = {f"rank-{rank}-{number}" for rank in range(size) for number in range(5)}
        fallback = {f"fallback-{rank}" for rank in range(size)} if size == 3 else set()
        assert sorted(name for _, name in acted[0]) == sorted(asked | fallback)
    assert ends[3].reason is TaskReason.FINISHED
    assert (ends[2].reason, ends[2].returncode) == (TaskReason.KILLED, -9)


def test_the_recipe_trains_on_two_ranks_and_measures_every_row_once(supervisor: Supervisor) -> None:
    spec = {
        "taskType": "sft",
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "data": {
            "path": "builtin:gsm8k",
            "prompt_column": "question",
            "response_column": "answer",
            "max_samples": 24,
            "eval": {"split": "test", "max_samples": 12},
        },
        "training": {
            "max_steps": 2,
            "batch_size": 2,
            "max_seq_length": 128,
            "save_strategy": "no",
            "parallelism": "fsdp",
            "seed": 3,
        },
        "resources": {"processes": 2, "hardware": {"gpu": {"count": 0}}},
    }
    handle = supervisor.launch(job("tunefleet.workloads.training:main", **spec))
    assert end(handle, 240).reason is TaskReason.FINISHED
    result = json.loads(handle.folder.responses_json.read_text())
    assert (result["used"]["processes"], result["used"]["parallelism"], result["used"]["batch_size"]) == (2, "fsdp", 4)
    alone = _loss_alone(spec["data"], handle.folder.root / "alone")
    assert result["held_out"]["loss_before"] == pytest.approx(alone, abs=1e-4)
    weights = load_file(handle.folder.root / "final_model" / "model.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) == result["used"]["parameters"]


def _loss_alone(data: dict[str, Any], workspace: Path) -> float:
    """Sum the loss of each held-out row alone, with plain Transformers."""
    source = base_model.locate("builtin:gsm8k-llama-2m", None)
    tokenizer, model = base_model.load_tokenizer(source), AutoModelForCausalLM.from_pretrained(source.path)
    portion = open_portions(TrainingData.model_validate(data), {}, workspace, seed=0).held_out
    assert portion is not None
    total, count = 0.0, 0
    for row in tokenize(portion.rows, portion.shape, Encoder(tokenizer), 128).dataset:
        labels = torch.tensor([row["labels"]])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row["input_ids"]])).logits
        total += torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum").item()
        count += int((labels[:, 1:] != -100).sum())
    return total / count
