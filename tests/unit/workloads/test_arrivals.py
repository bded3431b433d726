"""A model that comes from the Hub is seen to come."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.workloads.common import hub_files

SIZES = {"model.safetensors": 80_000_000, "pytorch_model.bin": 80_000_000, "config.json": 5_000_000, "x.onnx": 900}


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        (SIZES, 85_000_000),
        ({"pytorch_model-1.bin": 3, "pytorch_model-2.bin": 4, "tokenizer.json": 5, "README.md": 6}, 12),
        ({"config.json": 2}, 2),
        ({}, 0),
    ],
)
def test_what_is_fetched_is_weights_of_one_kind_and_what_is_small(sizes: dict[str, int], total: int) -> None:
    assert hub_files.loaded_bytes(sizes) == total


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(hub_files, "_reporters", [])
    monkeypatch.setattr(hub_files, "_watched", set())
    hub_files.report_downloads_to(lambda phase, **fields: found.append({"phase": phase, **fields}))
    return found


def arrive(monkeypatch: pytest.MonkeyPatch, cache: Path, pieces: list[int]) -> None:
    """Let a model come piece by piece, one a look, and wait until nobody looks any more."""
    blobs = cache / "models--org--name" / "blobs"
    left = iter(pieces)

    def sleep(_: float) -> None:
        count = next(left, 0)
        if count:
            blobs.mkdir(parents=True, exist_ok=True)
            with (blobs / "ab.incomplete").open("ab") as file:
                file.truncate(file.tell() + count)

    monkeypatch.setattr(hub_files, "time", SimpleNamespace(sleep=sleep))
    hub_files.watch_download("org/name", SIZES, cache)
    hub_files.watch_download("org/name", SIZES, cache)
    for thread in threading.enumerate():
        if thread.name == "arrivals":
            thread.join(10)


def test_a_model_is_told_as_it_comes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[dict[str, Any]]
) -> None:
    arrive(monkeypatch, tmp_path, [37_000_000, 0, 48_000_000])
    assert told == [{"phase": "fetching 37 of 85 MB"}, {"phase": "fetching 85 of 85 MB"}]


def test_of_a_model_that_is_here_or_stays_away_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[dict[str, Any]]
) -> None:
    arrive(monkeypatch, tmp_path / "away", [])
    (tmp_path / "models--org--name" / "blobs").mkdir(parents=True)
    with (tmp_path / "models--org--name" / "blobs" / "ab").open("wb") as file:
        file.truncate(85_000_000)
    monkeypatch.setattr(hub_files, "_watched", set())
    arrive(monkeypatch, tmp_path, [])
    assert told == []
