from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import DataError
from tunefleet.spec import TrainingData


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Portions, numbered, open_portions
    pytest.importorskip("datasets")

    from tunefleet.workloads.data.readers import numbered
    from tunefleet.workloads.data.sources import Portions, open_portions


pytestmark = pytest.mark.torch
ROWS = [{"text": str(number)} for number in range(20)]
Writer = Callable[..., Path]


def opened(data: dict[str, Any], tmp_path: Path, inputs: dict[str, str] | None = None, seed: int = 0) -> Portions:
    return open_portions(TrainingData.model_validate(data), inputs or {}, tmp_path / "workspace", seed=seed)


def numbers(portion: Any) -> list[int]:
    return [int(row["text"]) for row in portion.rows]


def test_a_split_of_the_built_in_dataset_and_another_held_out(tmp_path: Path) -> None:
    pair = {"prompt_column": "question", "response_column": "answer"}
    portions = opened({"path": "builtin:gsm8k", **pair, "eval": {"split": "test", "max_samples": 7}}, tmp_path)
    assert len(portions.train.rows) == 2000
    assert portions.train.shape.origin == "builtin:gsm8k (train)"
    assert portions.held_out is not None
    assert len(portions.held_out.rows) == 7
    assert portions.held_out.shape.origin == "builtin:gsm8k (test)"


@pytest.mark.parametrize(
    ("split", "kept"),
    [
        ("train", range(20)),
        ("train[:10%]", range(2)),
        ("train[5:8]", range(5, 8)),
        ("train[-3:]", range(17, 20)),
        ("train[50%:]", range(10, 20)),
    ],
)
def test_slices_are_those_of_the_hub(split: str, kept: range, jsonl: Writer, tmp_path: Path) -> None:
    assert numbers(opened({"path": str(jsonl(ROWS)), "split": split}, tmp_path).train) == list(kept)


@pytest.mark.parametrize("split", ["train[", "train[a:b]", "train[:30]x"])
def test_a_split_that_cannot_be_understood_is_named(split: str, jsonl: Writer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split"):
        opened({"path": str(jsonl(ROWS)), "split": split}, tmp_path)


def test_max_samples_takes_the_first(jsonl: Writer, tmp_path: Path) -> None:
    assert numbers(opened({"path": str(jsonl(ROWS)), "max_samples": 3}, tmp_path).train) == [0, 1, 2]


def test_a_held_out_fraction_is_drawn_by_the_seed_and_taken_out(jsonl: Writer, tmp_path: Path) -> None:
    data = {"path": str(jsonl(ROWS)), "eval": {"fraction": 0.25}}
    first, again, other = (opened(data, tmp_path, seed=seed) for seed in (1, 1, 2))
    assert first.held_out is not None
    assert again.held_out is not None
    assert other.held_out is not None
    assert len(first.held_out.rows) == 5
    assert sorted(numbers(first.train) + numbers(first.held_out)) == list(range(20))
    assert numbers(first.held_out) == numbers(again.held_out) != numbers(other.held_out)


def test_max_samples_does_not_change_which_rows_are_held_out(jsonl: Writer, tmp_path: Path) -> None:
    data = {"path": str(jsonl(ROWS)), "eval": {"fraction": 0.25}}
    few = opened({**data, "max_samples": 4}, tmp_path)
    every = opened(data, tmp_path)
    assert few.held_out is not None
    assert every.held_out is not None
    assert numbers(few.held_out) == numbers(every.held_out)
    assert numbers(few.train) == numbers(every.train)[:4]


def test_a_fraction_that_leaves_nothing_is_refused(jsonl: Writer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"An eval set of 0\.01 of the 20 rows"):
        opened({"path": str(jsonl(ROWS)), "eval": {"fraction": 0.01}}, tmp_path)


def test_another_file_is_held_out_and_read_with_the_same_columns(jsonl: Writer, tmp_path: Path) -> None:
    other = jsonl([{"text": "99"}], "held.jsonl")
    portions = opened(
        {"path": str(jsonl(ROWS)), "eval": {"path": "held.jsonl"}}, tmp_path, {"data.eval.path": str(other)}
    )
    assert portions.held_out is not None
    assert numbers(portions.held_out) == [99]
    wrong = jsonl([{"body": "99"}], "wrong.jsonl")
    with pytest.raises(DataError, match=r"wrong\.jsonl has no column 'text'.*body"):
        opened({"path": str(jsonl(ROWS)), "eval": {"path": str(wrong)}}, tmp_path)


@pytest.mark.parametrize(
    ("data", "pointer"),
    [
        ({"path": "rows.jsonl"}, "data.path"),
        ({"artifact": "my-rows"}, "data.artifact"),
        ({"dataset_name": "./rows"}, "data.dataset_name"),
        ({"jsonl": {"path": "rows.jsonl"}}, "data.jsonl.path"),
        ({"jsonl_path": "rows.jsonl"}, "data.jsonl_path"),
    ],
)
def test_what_was_uploaded_stands_for_what_the_user_named(
    data: dict[str, Any], pointer: str, jsonl: Writer, tmp_path: Path
) -> None:
    assert numbers(opened(data, tmp_path, {pointer: str(jsonl(ROWS))}).train) == list(range(20))


def test_a_file_on_the_worker_needs_no_upload(jsonl: Writer, tmp_path: Path) -> None:
    path = jsonl([{"q": "1", "a": "2"}])
    nested = {"worker_path": str(path), "prompt_field": "q", "response_field": "a", "separator": " "}
    assert opened({"jsonl": nested}, tmp_path).train.shape.columns == ("q", "a")


def test_an_archive_stands_for_its_folder_and_is_unpacked_once(jsonl: Writer, tmp_path: Path) -> None:
    archive = tmp_path / "rows.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(jsonl(ROWS), "data/train.jsonl")
    for _ in range(2):
        assert numbers(opened({"path": str(archive)}, tmp_path).train) == list(range(20))


def test_inline_prompts_are_texts(tmp_path: Path) -> None:
    portions = opened({"prompts": ["1", "2", "3"], "max_samples": 2}, tmp_path)
    assert numbers(portions.train) == [1, 2]
    assert portions.train.shape.kind == "text"


def test_an_empty_dataset_is_named(jsonl: Writer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl has no rows"):
        opened({"path": str(jsonl([]))}, tmp_path)


def test_a_hub_dataset_that_is_not_in_the_cache_says_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Dataset 'nobody/nothing' not found.*HF_HUB_OFFLINE"):
        opened({"dataset_name": "nobody/nothing"}, tmp_path)


def test_equal_rows_stay_on_one_side_of_the_split_and_are_counted(jsonl: Writer, tmp_path: Path) -> None:
    rows = [{"text": str(at % 10), "id": at} for at in range(40)]
    portions = opened({"path": str(jsonl(rows)), "eval": {"fraction": 0.2}}, tmp_path)
    assert portions.held_out is not None
    assert not set(numbers(portions.train)) & set(numbers(portions.held_out))
    assert len(portions.held_out.rows) == 8
    assert portions.duplicates is not None
    assert (portions.duplicates.rows, portions.duplicates.shared) == (30, 0)
    assert "30 rows are duplicates" in str(portions.duplicates.sentence)
    with pytest.raises(DataError, match="are mostly equal"):
        opened({"path": str(jsonl([{"text": "1"}] * 20)), "eval": {"fraction": 0.1}}, tmp_path)


def test_held_out_rows_of_another_file_that_are_trained_on_are_counted(jsonl: Writer, tmp_path: Path) -> None:
    other = jsonl([{"text": "3"}, {"text": "99"}], "held.jsonl")
    portions = opened({"path": str(jsonl(ROWS)), "eval": {"path": str(other)}}, tmp_path)
    assert portions.duplicates is not None
    assert (portions.duplicates.rows, portions.duplicates.shared) == (0, 1)
    assert "1 eval rows are also training rows" in str(portions.duplicates.sentence)


def test_a_row_keeps_its_number_in_the_file_whatever_is_taken_out_before_it(jsonl: Writer, tmp_path: Path) -> None:
    rows = [*ROWS[:15], {"text": None}, *ROWS[15:]]
    for extra in ({"eval": {"fraction": 0.25}}, {"split": "train[10:]"}, {"split": "train[10:18]", "max_samples": 7}):
        portions = opened({"path": str(jsonl(rows)), **extra}, tmp_path, seed=1)
        found = [portion for portion in (portions.train, portions.held_out) if portion is not None]
        rows_there = [each for portion in found for each in numbered(portion.rows)]
        assert [number for number, row in rows_there if row["text"] is None] == [16]
