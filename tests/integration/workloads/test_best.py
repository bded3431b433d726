"""The best checkpoint is delivered, also where it is the last one and is still being written or compressed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global BackgroundWriter, Trainer, Work
    pytest.importorskip("torch")

    from tunefleet.workloads.training.async_checkpoint import BackgroundWriter, Work
    from tunefleet.workloads.training.trainer import Trainer


pytestmark = pytest.mark.torch


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_best_is_loaded_though_it_is_just_being_written_or_compressed(
    train: Any, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    submit, loaded = BackgroundWriter.submit, []

    def slowly(self: BackgroundWriter, work: Work) -> None:
        submit(self, lambda: (time.sleep(0.5), work())[1])

    def load(self: Trainer) -> None:
        before = next(iter(self.model.parameters())).detach().clone()
        # Whatever is trained now must be replaced by what lies in the checkpoint.
        for parameter in self.model.parameters():
            parameter.data.zero_()
        real(self)
        loaded.append(bool((next(iter(self.model.parameters())) == before).all()))

    monkeypatch.setattr(BackgroundWriter, "submit", slowly)
    real = Trainer._load_best_model
    monkeypatch.setattr(Trainer, "_load_best_model", load)
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    checkpoint = {"asynchronous": asynchronous, "compress": "zstd"}
    ended = train(
        {
            "taskType": "sft",
            "lora": None,
            "checkpoint": checkpoint,
            "training": {**options, "load_best_model_at_end": True},
        }
    )
    assert ended.status.state == "completed"
    assert loaded == [True]


def test_it_is_said_where_the_weights_of_the_best_are_gone(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Trainer._load_best_model

    def load(self: Trainer) -> None:
        for file in Path(str(self.state.best_model_checkpoint)).glob("*.safetensors"):
            file.unlink()
        real(self)

    monkeypatch.setattr(Trainer, "_load_best_model", load)
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    ended = train({"training": {**options, "load_best_model_at_end": True}})
    assert ended.status.state == "completed"
    (said,) = [record for record in ended.records("event") if record["name"] == "training.best_missing"]
    assert "checkpoint-2" in said["message"]
    assert said["level"] == "error"
