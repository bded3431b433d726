"""Rounding to 8 bits over many updates: what counted and what is kept add up to what was trained."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefleet.federation import AdapterFile
from tunefleet.federation.quantize import unpack
from tunefleet.schemas.federated import UpdateTaken


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Packer, RESIDUAL, torch
    pytest.importorskip("peft")

    import torch

    from tunefleet.workloads.federated.update_compression import RESIDUAL, Packer


pytestmark = pytest.mark.torch
OUTCOMES = ("counted", "waiting", "replaces", "superseded", "discarded", "refused", "counted and begun again")


def said(number: int, state: Any, replaces: int | None = None) -> UpdateTaken:
    counted = state == "counted"
    return UpdateTaken(
        id=number, counted=counted, should_aggregate=False, round=1, version=0, state=state, replaces=replaces
    )


class Worker:
    """A packer, and what a server has of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packer = Packer("int8", folder, folder / RESIDUAL)
        self.standing: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Trained and sent, by id."""

    def send(self, number: int, outcome: str) -> None:
        trained = np.random.default_rng(number).standard_normal(300).astype(np.float32)
        packed = self.packer.pack({"a": torch.from_numpy(trained)})
        unpack(packed.file, self.folder / "plain")
        with AdapterFile(self.folder / "plain") as file:
            values = file.whole("a")
        last = max(self.standing, default=None)
        replaces = last if outcome == "replaces" else None
        if outcome == "refused":
            return
        state = outcome if outcome in {"waiting", "superseded", "discarded"} else "counted"
        self.packer.keep(packed, said(number, state, replaces))
        if state in {"counted", "waiting"}:
            self.standing.pop(-1 if replaces is None else replaces, None)
            self.standing[number] = (trained, values)
        if outcome == "counted and begun again":
            self.packer.copy_to(self.folder)
            self.packer = Packer("int8", self.folder, self.folder / RESIDUAL)
            self.packer.resume(self.folder / RESIDUAL)

    @property
    def off(self) -> float:
        """How far what counted and what is kept are from what was trained."""
        if not self.standing:
            assert not self.packer._feedback.residual
            return 0.0
        trained, values = (np.sum(each, axis=0) for each in zip(*self.standing.values(), strict=True))
        return float(np.abs(values + self.packer._feedback.residual["a"] - trained).max())


@settings(max_examples=40)
@given(st.lists(st.sampled_from(OUTCOMES), max_size=12))
def test_what_counted_and_what_is_kept_are_what_was_trained(outcomes: list[str]) -> None:
    with TemporaryDirectory() as folder:
        worker = Worker(Path(folder))
        for number, outcome in enumerate(outcomes, start=1):
            worker.send(number, outcome)
            assert worker.off < 2e-5, outcomes[:number]


def test_what_did_not_count_changes_no_later_update(tmp_path: Path) -> None:
    one, two = Worker(tmp_path), Worker(tmp_path / "two")
    two.folder.mkdir()
    for number, outcome in enumerate(("counted", "discarded", "refused", "counted"), start=1):
        one.send(number, outcome)
        if outcome == "counted":
            two.send(number, outcome)
    assert np.array_equal(one.standing[4][1], two.standing[4][1])


def test_a_server_that_says_no_more_than_counted_is_believed(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    packed = worker.packer.pack({"a": torch.ones(3)})
    worker.packer.keep(packed, UpdateTaken(id=1, counted=False, should_aggregate=False, round=1, version=0))
    assert not worker.packer._feedback.residual
