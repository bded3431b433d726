"""Trainings in this process, on a model so small that a step takes milliseconds."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ended import EndedJob
from tests.libraries import required
from tests.making import llama
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control import session
from tunefleet.workloads import entrypoint

required("torch")

LORA: dict[str, Any] = {
    "taskType": "lora_sft",
    "data": {
        "path": "builtin:gsm8k",
        "prompt_column": "question",
        "response_column": "answer",
        "separator": "\n",
        "max_samples": 48,
        "eval": {"split": "test", "max_samples": 12},
    },
    "lora": {"r": 4, "alpha": 8, "target_modules": "all-linear", "dropout": 0.0},
    "training": {
        "max_steps": 4,
        "batch_size": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "max_seq_length": 96,
        "save_strategy": "no",
        "seed": 3,
    },
}


@dataclass(frozen=True)
class Ended(EndedJob):
    """A training that has come to an end."""

    def series(self, name: str) -> list[float]:
        return [r["values"][name] for r in self.records("metric") if name in r["values"]]

    def weights(self) -> dict[str, Any]:
        from safetensors.torch import load_file

        (file,) = self.folder.root.glob("final_*/*.safetensors")
        return dict(load_file(file))


Train = Callable[..., Ended]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 2 layers and hidden size 32 with the shipped tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    return llama.make(folder, hidden=32, intermediate=64, layers=2, heads=2, shared=2, length=256)


@pytest.fixture
def train(tiny_model: Path, tmp_path: Path) -> Train:
    """Run a training: `train({...})` changes the spec above; `again=` starts another launch on an older folder."""
    numbers = itertools.count(1)

    def go(changes: dict[str, Any] | None = None, *, again: Ended | None = None, inputs: Any = None) -> Ended:
        number = next(numbers)
        folder = again.folder if again else JobFolder(tmp_path / f"job-{number}")
        folder.root.mkdir(exist_ok=True)
        spec = merge({**LORA, "model": {"source": {"identifier": str(tiny_model)}}}, changes or {})
        launch = f"launch-{number}"
        # Each launch is a process of its own; here it is the same one, so it must forget the launch before.
        session._sessions.clear()
        job = {"job_id": "j", "task_id": "j", "attempt": 1, "launch": launch, "kind": spec["taskType"], "name": "t"}
        job |= {"program": "tunefleet.workloads.training:main", "spec": spec, "inputs": inputs or {}}
        folder.job_json.write_text(json.dumps(job))
        return Ended(entrypoint.main(folder.root), folder, launch)

    go.model = tiny_model  # type: ignore[attr-defined]
    go.spec = {**LORA, "model": {"source": {"identifier": str(tiny_model)}}}  # type: ignore[attr-defined]
    go.merged = lambda changes: merge(go.spec, changes)  # type: ignore[attr-defined]
    return go


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Change a document; a value of `None` removes a key."""
    merged = copy.deepcopy(base)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged
