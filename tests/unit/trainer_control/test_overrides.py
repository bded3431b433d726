"""`set` on the schedulers that trainings have, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.trainer_control.control.overrides import Overrides, RefusedChangeError, check_changes


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global torch
    pytest.importorskip("torch")

    import torch


pytestmark = pytest.mark.torch

ARGS = SimpleNamespace(
    load_best_model_at_end=True, logging_strategy="steps", save_strategy="steps", eval_strategy="steps"
)


def state(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"global_step": 3, "max_steps": 9, "save_steps": 4, "eval_steps": 2, **fields})


def optimizer(*rates: float) -> Any:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups)


def change(data: dict[str, Any], scheduler: Any = None, now: Any = None) -> None:
    Overrides().change(data, SimpleNamespace(**vars(ARGS)), now or state(), SimpleNamespace(), scheduler)


@pytest.mark.parametrize(
    "make",
    [
        lambda found: torch.optim.lr_scheduler.LambdaLR(found, lambda step: 1 - step / 10),
        lambda found: torch.optim.lr_scheduler.CosineAnnealingLR(found, 10),
        lambda found: torch.optim.lr_scheduler.SequentialLR(
            found,
            [
                torch.optim.lr_scheduler.LinearLR(found, 0.5, total_iters=2),
                torch.optim.lr_scheduler.LambdaLR(found, lambda step: 1 - step / 10),
            ],
            [2],
        ),
        lambda found: SimpleNamespace(scheduler=torch.optim.lr_scheduler.ConstantLR(found, 0.5, 4)),
    ],
    ids=["lambda", "cosine", "sequential", "wrapped"],
)
def test_the_schedule_keeps_its_shape_and_its_groups_their_ratio(make: Any) -> None:
    def rates(new: float | None) -> list[list[float]]:
        found = optimizer(1e-3, 1e-4)
        scheduler = make(found)
        inner = getattr(scheduler, "scheduler", scheduler)
        seen = []
        for step in range(6):
            if step == 3 and new is not None:
                change({"learning_rate": new}, scheduler)
            seen.append([group["lr"] for group in found.param_groups])
            found.step()
            inner.step()
        return seen

    plain, changed = rates(None), rates(4e-3)
    assert changed[:3] == plain[:3]
    for before, after in zip(plain[3:], changed[3:], strict=True):
        assert after == pytest.approx([4 * rate for rate in before])


def test_a_scheduler_of_deepspeeds_own_is_refused_by_name() -> None:
    warmup = type("WarmupLR", (), {"__module__": "deepspeed.runtime.lr_schedules"})()
    with pytest.raises(RefusedChangeError, match=r"DeepSpeed's own scheduler \(WarmupLR\)"):
        change({"learning_rate": 1e-4}, SimpleNamespace(scheduler=warmup))


def test_nothing_is_changed_if_one_part_is_refused() -> None:
    found = optimizer(1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(found, lambda step: 1.0)
    now = state()
    with pytest.raises(RefusedChangeError, match="not a multiple"):
        change({"learning_rate": 1.0, "save_steps": 3}, scheduler, now)
    assert (found.param_groups[0]["lr"], now.save_steps) == (1e-3, 4)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"seed": 1},
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"learning_rate": "1e-4"},
        {"save_steps": 1.5},
        {"save_steps": True},
        {"max_steps": 0},
        {"learning_rate": 10**400},
        {"save_steps": 2**53 + 1},
        {"max_steps": None},
    ],
    ids=str,
)
def test_what_no_training_could_be_set_to_is_refused_at_once(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"set|must be"):
        check_changes(data)
