"""What ends a training as broken, and what is never delivered."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.errors import DataError
from tunefleet.workloads.faults import DivergedError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global TrainerControl, DivergenceCallback, callbacks, setup
    pytest.importorskip("transformers")

    from transformers import TrainerControl

    from tunefleet.workloads.training import callbacks, setup
    from tunefleet.workloads.training.callbacks import DivergenceCallback


pytestmark = pytest.mark.torch


def watch(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> DivergenceCallback:
    monkeypatch.setattr(callbacks.trainer_control, "callbacks_for_job", lambda _: [])
    checkpoint, training = SimpleNamespace(compress="none"), SimpleNamespace(trackers=())
    spec = SimpleNamespace(task_type=kind, on_nan="stop", checkpoint=checkpoint, training=training)
    session = SimpleNamespace(journal=SimpleNamespace(event=lambda *_: None), leads=True)
    launch: Any = SimpleNamespace(spec=spec, folder=SimpleNamespace(root=folder), session=session)
    (found,) = callbacks.common_callbacks(launch)
    assert isinstance(found, DivergenceCallback)
    return found


def log(watching: DivergenceCallback, losses: list[float]) -> None:
    args: Any = SimpleNamespace(fp16=False)
    for step, loss in enumerate(losses, start=1):
        state: Any = SimpleNamespace(global_step=step, is_world_process_zero=True)
        watching.on_log(args, state, TrainerControl(), logs={"loss": loss})


@pytest.mark.parametrize("kind", ["ppo", "grpo", "rloo", "dpo", "sft"])
def test_a_loss_that_climbs_ends_no_training_on_rewards_but_one_that_is_no_number_ends_any(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = watch(kind, tmp_path, monkeypatch)
    climbs = [0.01] * 40 + [5.0] * 20
    if kind in {"dpo", "sft"}:
        with pytest.raises(DivergedError, match="has risen since step 41"):
            log(watching, climbs)
    else:
        log(watching, climbs)
    with pytest.raises(DivergedError, match="The loss at step 1 is nan"):
        log(watch(kind, tmp_path, monkeypatch), [float("nan")])


def test_a_training_that_made_none_of_its_steps_delivers_nothing() -> None:
    launch: Any = SimpleNamespace(product=Path("final_model"))
    trainer: Any = SimpleNamespace(state=SimpleNamespace(global_step=0, max_steps=2))
    with pytest.raises(DataError, match=r"None of the 2 training steps.*batch_size"):
        setup.deliver(launch, trainer, None)  # type: ignore[arg-type]
