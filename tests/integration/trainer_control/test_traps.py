"""What goes wrong with checkpoints by itself under Hugging Face's own rotation and end, and does not here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.trainer_control.test_trainer import Run, libraries  # noqa: F401
from tunefleet.trainer_control.checkpoints.manifest import invalid_reason, list_complete

pytestmark = pytest.mark.torch

BEST: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_steps": 2,
    "save_total_limit": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "learning_rate": 1e-2,
}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    folder = tmp_path / "task-1"
    folder.mkdir()
    run = Run(folder)
    yield run
    if run.session is not None:
        run.session.close()


def pause(run: Run, step: int, **options: Any) -> None:
    with pytest.raises(SystemExit) as left:
        run.start(at=(step, "pause"), **options)
    assert left.value.code == 0
    assert run.status().state == "paused"


def test_the_end_does_not_delete_what_a_pause_has_saved(run: Run) -> None:
    pause(run, 5, **BEST)
    # Step 5 is no evaluation: the best is an earlier one, and "keep one" would have left that alone.
    assert run.checkpoints() == ["checkpoint-4", "checkpoint-5"]
    assert (run.command()["state"], run.command()["checkpoint"]) == ("durable", "checkpoint-5")
    assert invalid_reason(run.folder / "checkpoints" / "checkpoint-5") is None
    assert run.start(**BEST).resume is not None
    assert next(first for first, _ in run.windows(2)) == 6


def test_the_end_of_an_epoch_adds_nothing_to_a_pause(run: Run) -> None:
    epochs: dict[str, Any] = {
        "max_steps": -1,
        "num_train_epochs": 2,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
    }
    pause(run, 8, **epochs)  # 32 rows by 4: the epoch ends here
    (checkpoint,) = list_complete(run.folder / "checkpoints")
    assert (checkpoint.step, invalid_reason(checkpoint.path)) == (8, None)
    assert len([record for record in run.records() if record.type == "checkpoint"]) == 1
    run.start(**epochs)
    assert run.status().step == 16


def test_the_best_is_found_after_the_folder_has_moved(run: Run, tmp_path: Path) -> None:
    # The loss falls, and the highest counts: what is best at the pause is best at the end.
    options = {**BEST, "greater_is_better": True}
    pause(run, 5, **options)
    state = json.loads((run.folder / "checkpoints" / "checkpoint-5" / "trainer_state.json").read_text())
    best = Path(state["best_model_checkpoint"]).name
    elsewhere = tmp_path / "other-machine" / "task-1"
    elsewhere.parent.mkdir()
    assert run.session is not None
    run.session.close()
    shutil.move(run.folder, elsewhere)
    moved = Run(elsewhere)
    moved.launches = 1
    moved.start(**options)
    newest = list_complete(elsewhere / "checkpoints")[-1]
    state = json.loads((newest.path / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(elsewhere / "checkpoints" / best)
    assert best == "checkpoint-2"
    assert best in moved.checkpoints()
