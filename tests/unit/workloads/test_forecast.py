"""What a training is expected to write, from its arguments and its model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global disk_forecast, torch
    pytest.importorskip("torch")

    import torch

    from tunefleet.workloads.training.setup import disk_forecast


pytestmark = pytest.mark.torch


def trainer(**arguments: Any) -> Any:
    frozen, trained = torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 1, bias=False)
    frozen.weight.requires_grad_(False)
    defaults = {
        "max_steps": -1,
        "num_train_epochs": 2.0,
        "train_batch_size": 4,
        "world_size": 1,
        "gradient_accumulation_steps": 2,
        "save_strategy": "steps",
        "save_steps": 5,
        "eval_steps": None,
        "save_total_limit": 2,
    }
    args = SimpleNamespace(**{**defaults, **arguments})
    return SimpleNamespace(model=torch.nn.Sequential(frozen, trained), args=args, train_dataset=range(100))


@pytest.mark.parametrize(
    ("arguments", "saves"),
    [
        ({}, 6),  # 13 steps an epoch, 26 in all: at 5, 10, 15, 20, 25 and at the end
        ({"max_steps": 10}, 2),
        ({"save_steps": 0.25}, 4),
        ({"save_strategy": "no"}, 0),
        ({"save_strategy": "epoch"}, 2),
        ({"save_strategy": "epoch", "num_train_epochs": 1.5}, 2),
        ({"save_strategy": "best", "eval_steps": 13}, 2),
        ({"save_strategy": "best"}, 1),
    ],
)
def test_the_saves_are_counted(arguments: dict[str, Any], saves: int) -> None:
    assert disk_forecast(trainer(**arguments), adapter=False).saves == saves


@pytest.mark.parametrize(("adapter", "weights_bytes"), [(True, 40), (False, 440)])
def test_an_adapter_writes_its_own_weights_only(adapter: bool, weights_bytes: int) -> None:
    found = disk_forecast(trainer(), adapter=adapter)
    assert (found.weights_bytes, found.trainable_parameters, found.checkpoints) == (weights_bytes, 10, 2)
