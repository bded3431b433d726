"""Trainings on the GPU of this machine, started as a worker starts them: claimed, forked from a warm server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.libraries import required
from tests.making import llama
from tunefleet.runtime import Supervisor
from tunefleet.runtime.gpu.info import GpuFigures, read_gpus
from tunefleet.settings import inherited_environment

required("torch")

SPEC: dict[str, Any] = {
    "taskType": "lora_sft",
    "data": {
        "path": "builtin:gsm8k",
        "prompt_column": "question",
        "response_column": "answer",
        "separator": "\n",
        "max_samples": 256,
    },
    "lora": {"r": 8, "alpha": 16, "target_modules": "all-linear", "dropout": 0.1},
    "training": {
        "max_steps": 30,
        "batch_size": 4,
        "learning_rate": 2e-3,
        "logging_steps": 1,
        "max_seq_length": 128,
        "save_strategy": "no",
        "seed": 3,
    },
}


@pytest.fixture(scope="session")
def card() -> GpuFigures:
    """The first GPU of this machine."""
    import torch

    found = read_gpus()
    if not found or not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    return found[0]


@pytest.fixture(scope="session")
def model(card: GpuFigures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 130 million random weights with the shipped tokenizer: large enough to be seen in a GPU's memory."""
    folder = tmp_path_factory.mktemp("model")
    return llama.make(folder, hidden=1024, intermediate=2816, layers=10, heads=16, shared=8, length=512)


@pytest.fixture(scope="module")
def supervisor(card: GpuFigures, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    home = tmp_path_factory.mktemp("gpu")
    supervisor = Supervisor(home / "results", endpoints_dir=home / "jobs", base_env=inherited_environment())
    yield supervisor
    supervisor.close()
