"""What is installed: the package with its data, and nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.packaging.making import build, copy_tree, one

MODEL_LIMIT_BYTES = 5 << 20


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    # The page has a test of its own, which needs an npm registry.
    build(copy_tree(repository, folder / "tree"), folder, "wheel")
    return zipfile.ZipFile(one(folder, "*.whl"))


@pytest.mark.slow
def test_the_wheel_brings_its_data(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    data = "tunefleet/programs/assets/data/gsm8k"
    model = "tunefleet/programs/assets/models/gsm8k-llama-2m"
    wanted = {f"{data}/{name}" for name in ("train.jsonl", "test.jsonl", "LICENSE", "SOURCE.md")}
    wanted |= {f"{model}/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json")}
    wanted |= {"tunefleet/py.typed", "tunefleet/store/migrations/env.py"}
    assert wanted - names == set()
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_wheel_brings_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in tops if not name.endswith((".dist-info", ".data"))} == {"tunefleet"}
    shared = [name for name in wheel.namelist() if ".data/" in name]
    assert [name.partition(".data/")[2] for name in shared] == ["data/share/man/man1/tunefleet.1"]
    assert not [name for name in wheel.namelist() if "__pycache__" in name]


@pytest.mark.slow
def test_the_shipped_model_is_small(wheel: zipfile.ZipFile) -> None:
    weights = [info for info in wheel.infolist() if info.filename.endswith(".safetensors")]
    assert sum(info.file_size for info in weights) <= MODEL_LIMIT_BYTES
