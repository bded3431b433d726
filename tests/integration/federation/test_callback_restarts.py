"""`FederatedCallback` in trainings that broke, were resumed, or began anew; against a double of the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.federation import TOKEN, Double


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global At, Crash, FederatedCallback, Unhurried, crash, digest, trainer
    pytest.importorskip("peft")

    from tests.integration.federation.training import At, Crash, Unhurried, crash, digest, trainer
    from tunefleet import FederatedCallback


# PEFT asks Transformers by a name that will go.
pytestmark = [pytest.mark.torch, pytest.mark.proof, pytest.mark.filterwarnings("ignore::FutureWarning")]

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("save_steps", "crash_at", "lost"),
    [
        pytest.param(4, 10, False, id="after"),
        pytest.param(4, 8, False, id="before"),
        pytest.param(8, 11, True, id="lost"),
    ],
)
def test_a_resumed_training_uploads_nothing_twice_and_counts_no_row_twice(
    federated: Make, double: Double, tmp_path: Path, save_steps: int, crash_at: int, lost: bool
) -> None:
    options = {"max_steps": 16, "save_strategy": "steps", "save_steps": save_steps}
    other = federated(worker_id="other", sync_every_steps=6)
    straight = trainer(tmp_path / "straight", other, Unhurried(other), **options)
    straight.train()
    expected = [(update["step"], update["num_examples"], update["sha256"]) for update in double.updates]
    assert [(step, count) for step, count, _ in expected] == [(6, 24), (12, 24), (16, 16)]
    double.updates.clear()
    first = federated(sync_every_steps=6)
    out = tmp_path / "out"
    with pytest.raises(Crash):
        trainer(out, first, Unhurried(first), At(crash_at, crash), **options).train()
    assert double.examples == [(6, 24)]
    if lost:  # resumed elsewhere, with the checkpoint alone
        (out / "federated/taken.json").unlink()
    second = federated(sync_every_steps=6)
    again = trainer(out, second, Unhurried(second), **options)
    again.train(resume_from_checkpoint=True)
    assert [(update["step"], update["num_examples"], update["sha256"]) for update in double.updates] == expected
    assert digest(again.model) == digest(straight.model)


def test_a_new_training_in_the_same_folder_begins_anew(federated: Make, double: Double, tmp_path: Path) -> None:
    for _ in range(2):
        trainer(tmp_path, federated(), max_steps=4).train()
    # The same bits again count once.
    assert double.examples == [(4, 16)]
    assert len(double.announced) == 2
    left = tmp_path / "federated/.newest-0a1b2c3d.part"
    left.write_bytes(b"of a killed process")
    trainer(tmp_path, federated(), max_steps=4, learning_rate=1e-3).train()
    assert double.examples == [(4, 16), (4, 16)]
    assert not left.exists()


def test_callbacks_that_the_trainer_makes_anew_know_their_secret(
    federated: Make, double: Double, tmp_path: Path
) -> None:
    options = {
        "max_steps": 8,
        "save_strategy": "steps",
        "save_steps": 4,
        "restore_callback_states_from_checkpoint": True,
    }
    with pytest.raises(Crash):
        trainer(tmp_path, federated(), At(6, crash), **options).train()
    assert TOKEN not in (tmp_path / "checkpoint-4/trainer_state.json").read_text()
    trainer(tmp_path, federated(), **options).train(resume_from_checkpoint=True)
    assert sum(examples for _, examples in double.examples) == 32


def test_a_checkpoint_from_before_the_federation_can_be_gone_on_with(
    federated: Make, double: Double, tmp_path: Path
) -> None:
    options = {"save_strategy": "steps", "save_steps": 4}
    trainer(tmp_path, max_steps=4, **options).train()
    trainer(tmp_path, federated(), max_steps=8, **options).train(resume_from_checkpoint=True)
    assert double.examples == [(8, 16)]
    saved = json.loads((tmp_path / "checkpoint-8/trainer_state.json").read_text())
    assert saved["stateful_callbacks"]["FederatedCallback"]["attributes"]["progress"]["rows"] == 16


def test_rounding_in_8_bits_survives_a_crash(federated: Make, double: Double, tmp_path: Path) -> None:
    options = {"max_steps": 12, "save_strategy": "steps", "save_steps": 4}
    other = federated(worker_id="other", upload_dtype="int8")
    trainer(tmp_path / "straight", other, Unhurried(other), **options).train()
    expected = [update["sha256"] for update in double.updates]
    double.updates.clear()
    first = federated(upload_dtype="int8")
    with pytest.raises(Crash):
        trainer(tmp_path / "out", first, Unhurried(first), At(10, crash), **options).train()
    second = federated(upload_dtype="int8")
    trainer(tmp_path / "out", second, Unhurried(second), **options).train(resume_from_checkpoint=True)
    assert [update["sha256"] for update in double.updates] == expected
    assert {update["upload_dtype"] for update in double.updates} == {"int8"}
