"""What is installed: the package with its data, and nothing else."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MODEL_LIMIT_BYTES = 5 << 20


pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def archive(wheel: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(wheel) as archive:
        yield archive


def test_the_wheel_brings_its_data(archive: zipfile.ZipFile) -> None:
    names = set(archive.namelist())
    data = "tunefleet/workloads/assets/data/gsm8k"
    model = "tunefleet/workloads/assets/models/gsm8k-llama-2m"
    wanted = {f"{data}/{name}" for name in ("train.jsonl", "test.jsonl", "LICENSE", "SOURCE.md")}
    wanted |= {f"{model}/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json")}
    wanted |= {"tunefleet/py.typed", "tunefleet/db/migrations/env.py"}
    assert wanted - names == set()
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_brings_nothing_else(archive: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in archive.namelist()}
    assert {name for name in tops if not name.endswith((".dist-info", ".data"))} == {"tunefleet"}
    shared = [name for name in archive.namelist() if ".data/" in name]
    assert [name.partition(".data/")[2] for name in shared] == ["data/share/man/man1/tunefleet.1"]
    assert not [name for name in archive.namelist() if "__pycache__" in name]


def test_the_shipped_model_is_small(archive: zipfile.ZipFile) -> None:
    weights = [info for info in archive.infolist() if info.filename.endswith(".safetensors")]
    assert sum(info.file_size for info in weights) <= MODEL_LIMIT_BYTES
