"""Local data files are checked before anything is submitted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tunefleet.analysis.dataset import file_reader
from tunefleet.client import local_data
from tunefleet.client.local_data import check_file
from tunefleet.errors import DataError
from tunefleet.spec import load_task_spec

PAIR = {"prompt": "a", "response": "b"}
MODEL = {"source": {"identifier": "builtin:gsm8k-llama-2m"}}


def write(folder: Path, name: str, rows: list[Any]) -> Path:
    file = folder / name
    if name.endswith(".parquet"):
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif name.endswith(".csv"):
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        file.write_text("\n".join(lines) + "\n")
    elif name.endswith(".json"):
        file.write_text(json.dumps(rows))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def check(file: Path, kind: str = "sft", **data: Any) -> None:
    spec = load_task_spec({"taskType": kind, "model": MODEL, "data": {"path": str(file), **data}})
    check_file(spec, "data.path", file)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_columns_are_looked_for_in_every_format(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, name, [PAIR, PAIR])
    check(file)
    check(file, prompt_column="prompt", response_column="response")
    missing = rf"spec\.data\.response_column: {name} has no column 'reply'.*It has: prompt, response"
    with pytest.raises(DataError, match=missing):
        check(file, prompt_column="prompt", response_column="reply")
    with pytest.raises(DataError, match=r"prompts and responses.*sft and lora_sft train on them"):
        check(file, kind="dpo")


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("dpo", {"prompt": "a", "chosen": "b", "rejected": "c"}),
        ("orpo", {"question": "a", "chosen": "b", "rejected": "c"}),
        ("kto", {"prompt": "a", "completion": "b", "label": "True"}),
        ("kto", {"prompt": "a", "chosen": "b", "rejected": "c"}),
        ("sft", {"instruction": "a", "input": "b", "output": "c"}),
    ],
)
def test_each_kind_has_its_rows(kind: str, row: dict[str, Any], tmp_path: Path) -> None:
    check(write(tmp_path, "a.jsonl", [row]), kind=kind)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a\.jsonl has no rows"),
        (json.dumps(PAIR).encode("utf-16"), "UTF-16 text, not UTF-8.*Save the file as UTF-8"),
        ('{"prompt": "é", "response": "b"}'.encode("cp1252"), "not UTF-8 text.*Save the file as UTF-8"),
        (b'{"prompt": "a", "response": "b"}\n{"prompt": "a"}\n', "Row 2 of a.jsonl: it has no column 'response'"),
        (b'{"prompt": "a", "response": "b"}\n{nope\n', "Line 2 of a.jsonl is not valid JSON"),
        (b'{"messages": []}\n', "Row 1 of a.jsonl: 'messages' is an empty conversation"),
    ],
)
def test_what_a_run_could_not_use_is_refused_with_its_place(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        check(file)


def test_columns_separated_by_something_else_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("prompt;response\na;b\n")
    with pytest.raises(DataError, match="separated by semicolons"):
        check(file)


def test_only_the_beginning_is_read(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", [*[PAIR] * 1000, {"prompt": "a"}])
    check(file)
    check(write(tmp_path, "b.jsonl", [*[PAIR] * 999, PAIR]))
    with pytest.raises(DataError, match="Row 1000"):
        check(write(tmp_path, "c.jsonl", [*[PAIR] * 999, {"prompt": "a"}]))


def test_held_out_rows_and_those_of_evaluations_are_checked(tmp_path: Path) -> None:
    bad = write(tmp_path, "bad.jsonl", [{"x": 1}])
    data = {"path": str(bad), "eval": {"path": str(bad)}}
    spec = load_task_spec({"taskType": "sft", "model": MODEL, "data": data})
    with pytest.raises(DataError, match=r"spec\.data\.eval\.path: bad\.jsonl has an unknown shape"):
        check_file(spec, "data.eval.path", bad)
    evaluation = {"name": "a", "type": "loss", "data": {"path": str(bad)}}
    spec = load_task_spec({"taskType": "evaluate", "model": MODEL, "evaluations": [evaluation]})
    with pytest.raises(DataError, match=r"spec\.evaluations\.0\.data\.path: bad\.jsonl has an unknown shape"):
        check_file(spec, "evaluations.0.data.path", bad)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_what_is_too_large_to_be_read_here_is_left_to_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(file_reader, "MAX_AT_ONCE", 4)
    monkeypatch.setattr(local_data, "_PIECE", 8)
    check(write(tmp_path, name, [PAIR]))


def test_parquet_is_left_to_the_worker_where_nothing_here_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "a.parquet", [PAIR])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    check(file, prompt_column="prompt", response_column="reply")
    assert local_data.first_rows(file) is None


def test_a_folder_is_left_to_the_worker(tmp_path: Path) -> None:
    check(tmp_path)


CHAT = [{"role": "user", "content": "Why?"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "So."}]


@pytest.mark.parametrize(
    ("kind", "rows", "data", "error"),
    [
        ("inference", [{"text": "a"}], {}, None),
        ("inference", [{"convo": CHAT}], {"column": "convo"}, None),
        ("inference", [{"a": "x"}, {"convo": CHAT}], {"column": "convo"}, None),
        (
            "inference",
            [{"convo": CHAT}],
            {"column": "convoo"},
            "has no column 'convoo'. Did you mean convo? It has: convo.",
        ),
        ("inference", [{"question": "a"}], {}, "has no column 'text'. It has: question."),
        (
            "inference",
            [{"text": CHAT}, {"text": ANSWERED}],
            {},
            "Row 2 of a.jsonl: 'text' ends with the assistant's own answer",
        ),
        ("inference", [{"text": CHAT}, {"text": ANSWERED}], {"split": "train[:1]"}, None),
        ("inference", [{"text": [{"role": "user", "content": None}]}], {}, "Row 1 of a.jsonl: 'text' has a message"),
        ("embedding", [{"text": "a"}], {"column": "txt"}, "has no column 'txt'. Did you mean text? It has: text."),
        ("embedding", [{"text": ANSWERED}], {}, None),
    ],
)
def test_the_items_of_a_task_are_looked_at(
    kind: str, rows: list[Any], data: dict[str, Any], error: str | None, tmp_path: Path
) -> None:
    file = write(tmp_path, "a.jsonl", rows)
    given = {"type": "dataset", "url": str(file), **data}
    spec = load_task_spec({"taskType": kind, "model": MODEL, "data": given})
    if error is None:
        check_file(spec, "data.url", file)
        return
    with pytest.raises(DataError) as caught:
        check_file(spec, "data.url", file)
    assert str(caught.value).startswith("spec.data.url: ")
    assert error in str(caught.value)
