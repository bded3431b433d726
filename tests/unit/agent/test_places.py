"""Names, folders and addresses that a request may give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.agent import intake
from tunefleet.errors import ForbiddenError, InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "datasets"
    (root / "sub").mkdir(parents=True)
    (root / "rows.jsonl").write_text("{}\n")
    (root / "sub" / "rows.csv").write_text("a\n")
    (root / "split").mkdir()
    for name in ("train.jsonl", "validation-00000.parquet"):
        (root / "split" / name).write_text("")
    (root / "saved").mkdir()
    (root / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    (tmp_path / "outside.jsonl").write_text("{}\n")
    return root


@pytest.mark.parametrize("name", ["rows.jsonl", "sub/rows.csv", "./rows.jsonl"])
def test_a_name_is_looked_for_in_the_folder(folder: Path, name: str) -> None:
    found = intake.resolve_dataset(name, folder)
    assert found.inputs["data.path"] == str((folder / name).resolve())
    assert found.splits == ()
    assert intake.resolve_dataset(str(folder / name), folder) == found


def test_splits_are_known(folder: Path) -> None:
    assert intake.resolve_dataset("split", folder).splits == ("train", "validation")
    assert intake.resolve_dataset("saved", folder).splits == ("train", "test")


@pytest.mark.parametrize("name", ["../outside.jsonl", "{}/../outside.jsonl", "/etc/passwd", "sub/../../outside.jsonl"])
def test_what_lies_outside_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ForbiddenError, match="DATASETS_DIR"):
        intake.resolve_dataset(name.format(folder), folder)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "/a\0b", "http://[::1", "http://[::1]:x/rows", "~nobody/x.jsonl"])
def test_what_no_file_can_be_called_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(InputError):
        intake.resolve_dataset(name, folder)


def test_hub_ids_and_addresses(folder: Path) -> None:
    assert intake.resolve_dataset("org/name", folder).source == {"dataset_name": "org/name"}
    assert intake.resolve_dataset("hf://datasets/org/name@v1", folder).source == {
        "dataset_name": "org/name",
        "revision": "v1",
    }
    found = intake.resolve_dataset("https://example.org/x/rows.jsonl?sig=1", folder)
    assert (found.source, found.addresses) == (
        {"path": "rows.jsonl"},
        {"data.path": "https://example.org/x/rows.jsonl?sig=1"},
    )
    with pytest.raises(InputError, match="data file"):
        intake.resolve_dataset("https://example.org/", folder)
    assert intake.resolve_model("org/model", folder) == "org/model"
    assert intake.resolve_model("sub", folder) == str(folder / "sub")
    with pytest.raises(ForbiddenError, match="MODELS_DIR"):
        intake.resolve_model("/srv/model", folder)
