from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import DataError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Place, datasets, pa, pq, read_path
    pytest.importorskip("datasets")

    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tunefleet.workloads.data.dataset_source import Place
    from tunefleet.workloads.data.readers import read_path


pytestmark = pytest.mark.torch
ROWS = [{"prompt": "a, b", "response": "zwölf\nlines"}, {"prompt": "c", "response": "d"}]


def _jsonl(path: Path) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    return path


def _csv(path: Path) -> Path:
    separator = "\t" if path.suffix == ".tsv" else ","
    quoted = [separator.join(f'"{value}"' for value in row.values()) for row in ROWS]
    path.write_text("\n".join([separator.join(ROWS[0]), *quoted]), encoding="utf-8")
    return path


def _parquet(path: Path) -> Path:
    datasets.Dataset.from_list(ROWS).to_parquet(str(path))
    return path


def _saved(path: Path) -> Path:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(path))
    return path


def _saved_splits(path: Path) -> Path:
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(path))
    return path


def _folder(path: Path) -> Path:
    path.mkdir()
    _jsonl(path / "train.jsonl")
    (path / "README.md").write_text("not data")
    return path


def _json(path: Path) -> Path:
    path.write_text(json.dumps(ROWS))
    return path


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (_jsonl, "rows.jsonl"),
        (_jsonl, "rows.json"),  # what many people call JSON is one object a line
        (_json, "rows.json"),
        (_csv, "rows.csv"),
        (_csv, "rows.tsv"),
        (_parquet, "rows.parquet"),
        (_saved, "saved"),
        (_saved_splits, "splits"),
        (_folder, "folder"),
    ],
)
def test_every_format_gives_the_same_rows(make: Callable[[Path], Path], name: str, tmp_path: Path) -> None:
    datasets.disable_progress_bars()
    rows = read_path(make(tmp_path / name), "train")
    assert [dict(row) for row in rows] == ROWS


def test_a_limit_stops_before_a_malformed_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "good"}\n{"text": \n')
    assert read_path(path, "train", limit=1) == [{"text": "good"}]


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n')
    assert read_path(path, "train") == [{"text": "a"}]


def test_whole_numbers_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 18446744073709551615, "text": "no. 123456789012345678901234567890"}\n')
    assert read_path(path, "train") == [{"id": 2**64 - 1, "text": "no. 123456789012345678901234567890"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "good"}\n\n{"text": }\n', r"Line 3 of a\.jsonl is not valid JSON \(column 10"),
        ("a.jsonl", '["text"]\n', r"Line 1 of a\.jsonl holds a JSON list, not an object"),
        (
            "a.jsonl",
            '{"id": 18446744073709551616}\n',
            r"Line 1 of a\.jsonl contains the integer 18446744073709551616,",
        ),
        ("a.json", '[{"id": -9223372036854775809}]', r"a\.json contains the integer -9223372036854775809,"),
        ("a.json", '{"text": "a",}', r"a\.json is not valid JSON \(line 1, column"),
        ("a.json", '{"text": "a"}', r"a\.json is not a JSON array.*one object per line"),
        ("a.json", "[1]", r"Element 1 of a\.json is a JSON int"),
        ("a.csv", "a,b\n1,2\n3\n", r"Line 3 of a\.csv does not have the 2 fields"),
        ("a.csv", "a,b\n1,2,3\n", r"Line 2 of a\.csv does not have the 2 fields"),
        ("a.csv", 'a,b\n"1"x,2\n', r"Line 2 of a\.csv is not valid CSV"),
        ("a.csv", "prompt;response\na;b\n", r"a\.csv has a single column 'prompt;response'.*semicolons.*commas"),
        ("a.csv", "prompt\tresponse\na\tb\n", r"separated by tabs"),
        ("a.tsv", "prompt,response\na,b\n", r"separated by commas"),
        ("a.csv", "a,b,a\n1,2,3\n", r"a\.csv has two columns named 'a'"),
        ("a.parquet", "no parquet", r"a\.parquet is not a Parquet file"),
        ("a.xlsx", "", r"'\.xlsx'.*Known: \.csv, \.json, \.jsonl"),
    ],
)
def test_malformed_files_name_file_and_place(name: str, content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_path(path, "train")


def test_a_file_that_is_not_utf8_says_so(tmp_path: Path) -> None:
    for name in ("a.csv", "a.jsonl", "a.json"):
        path = tmp_path / name
        path.write_bytes('"zwölf"'.encode("cp1252"))
        with pytest.raises(DataError, match=r"is not UTF-8 text \(byte 0xf6.*Save the file as UTF-8"):
            read_path(path, "train")
        path.write_bytes('{"text": "x"}\n'.encode("utf-16"))
        with pytest.raises(DataError, match="is UTF-16 text, not UTF-8"):
            read_path(path, "train")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.jsonl does not exist"):
        read_path(tmp_path / "absent.jsonl", "train")


def test_a_folder_without_the_split_lists_what_it_has(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "folder")
    with pytest.raises(DataError, match=r"no file for the split 'test'.*train\.jsonl"):
        read_path(folder, "test")
    _jsonl(folder / "train-2.jsonl")
    with pytest.raises(DataError, match=r"several files for the split 'train'"):
        read_path(folder, "train")


def test_a_saved_dataset_without_the_split_lists_what_it_has(tmp_path: Path) -> None:
    datasets.disable_progress_bars()
    with pytest.raises(DataError, match=r"no split 'test'.*train"):
        read_path(_saved_splits(tmp_path / "splits"), "test")
    (tmp_path / "splits" / "train" / "state.json").write_text("{")
    with pytest.raises(DataError, match=r"state\.json of splits does not list its files"):
        read_path(tmp_path / "splits", "train")


def test_rows_of_any_are_left_alone(jsonl: Callable[..., Path]) -> None:
    rows: list[dict[str, Any]] = [{"messages": [{"role": "user", "content": None}], "n": 1}]
    assert read_path(jsonl(rows), "train") == rows


def _shards(folder: Path, suffix: str, name: str = "train") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(3):
        rows = [{"text": f"{at}{row}"} for row in range(2)]
        path = folder / f"{name}-{at:05d}-of-00003{suffix}"
        if suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("place", [".", "data"])
def test_files_of_one_split_are_read_in_order(suffix: str, place: str, tmp_path: Path) -> None:
    _shards(tmp_path / "set" / place, suffix)
    _shards(tmp_path / "set" / place, suffix, "test")
    (tmp_path / "set" / "README.md").write_text("a card")
    wanted = ["00", "01", "10", "11", "20", "21"]
    assert [row["text"] for row in read_path(tmp_path / "set", "train")] == wanted
    reader, _ = Place(str(tmp_path / "set"), None, tmp_path).stream("train")
    mark, found = None, []
    for count in (3, 2, 9):
        block = reader.read(mark, count)
        found += [block.row(at)["text"] for at in range(block.size)]
        mark = block.after
    assert (found, mark) == (wanted, None)


def test_a_set_of_files_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    folder = _shards(tmp_path / "set", ".jsonl", "rows")
    assert len(read_path(folder, "train")) == 6, "the only set there is"
    (folder / "rows-00001-of-00003.jsonl").unlink()
    with pytest.raises(DataError, match=r"lacks 1 of the 3 files.*rows-00001-of-00003\.jsonl"):
        read_path(folder, "train")


def test_media_of_a_saved_dataset_are_left_undecoded_and_nothing_else(tmp_path: Path) -> None:
    media = {"bytes": b"RIFF", "path": None}
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "voice": datasets.Audio(),
            "images": datasets.List(datasets.Image()),
            "scene": {"shot": datasets.Image()},
            "any": datasets.Json(),
        }
    )
    columns = {"text": ["a"], "voice": [media], "images": [[media]], "scene": [{"shot": media}], "any": ['"b"']}
    made = datasets.Dataset(pa.table(columns).cast(features.arrow_schema))
    made.save_to_disk(str(tmp_path / "set"))
    (row,) = read_path(tmp_path / "set", "train")
    assert row == {"text": "a", "voice": media, "images": [media], "scene": {"shot": media}, "any": "b"}
