"""What a file of rows is, what is wrong with which line of it, and how little of it is held."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tunefleet.analysis.dataset import file_reader
from tunefleet.analysis.dataset.preview import COLUMNS_SHOWN, FAULTS_SHOWN, PIECES_SHOWN, ROW_SHOWN, look
from tunefleet.schemas.datasets import DatasetLook

ALPACA = {"instruction": "Add 1 and 1", "input": "", "output": "2"}
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
SHAREGPT = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]
CHATML = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>"


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def seen(content: bytes, name: str = "rows.jsonl", **how: Any) -> DatasetLook:
    return look(name, [content], len(content), **how)


def said(found: DatasetLook) -> list[tuple[int | None, str]]:
    return [(fault.line, fault.message) for fault in found.faults]


@pytest.mark.parametrize(
    ("row", "kind", "use"),
    [
        (ALPACA, "alpaca", ("lora_sft", {})),
        ({**ALPACA, "input": "as words"}, "alpaca", ("lora_sft", {})),
        ({"messages": CHAT}, "messages", ("lora_sft", {"messages_field": "messages"})),
        ({"conversations": SHAREGPT}, "sharegpt", ("lora_sft", {"messages_field": "conversations"})),
        (
            {"conversations": [SHAREGPT[0], {"from": "bing", "value": "Yo"}]},
            "sharegpt",
            ("lora_sft", {"messages_field": "conversations"}),
        ),
        ({"text": CHATML}, "chatml", ("lora_sft", {})),
        (
            {"question": "Hi", "answer": "Yo"},
            "prompt_response",
            ("lora_sft", {"prompt_column": "question", "response_column": "answer"}),
        ),
        (
            {"system": "Be brief.", "prompt": "Hi", "response": "Yo"},
            "prompt_response",
            ("lora_sft", {"prompt_column": "prompt", "response_column": "response"}),
        ),
        ({"question": "Hi", "chosen": "Yo", "rejected": "No"}, "preference", ("dpo", {"prompt_column": "question"})),
        (
            {"chosen": "\n\nHuman: Hi\n\nAssistant: Yo", "rejected": "\n\nHuman: Hi\n\nAssistant: No"},
            "hh",
            ("dpo", {}),
        ),
        ({"prompt": "Hi", "completion": "Yo", "label": "True"}, "judged", ("kto", {})),
        ({"text": "Once."}, "text", ("lora_sft", {"text_field": "text"})),
    ],
)
def test_rows_are_recognised_with_the_training_that_reads_them(row: Any, kind: str, use: tuple[Any, ...]) -> None:
    found = seen(lines(row, row))
    assert (found.kind, found.rows, found.fault_count) == (kind, 2, 0)
    assert found.use is not None
    assert (found.use.kind, found.use.data) == use


def test_what_is_not_used_is_noted() -> None:
    found = seen(lines({"prompt": "Hi", "response": "Yo", "source": "web"}))
    assert found.notes == ("Columns that are not used: 'source' (row 1).",)


def test_what_counts_is_marked_turn_by_turn_and_measured() -> None:
    chat = [{"role": "system", "content": "Be brief."}, *CHAT, {"role": "user", "content": "And?"}, CHAT[1]]
    (row,) = seen(lines({"messages": chat})).shown
    assert [(piece.part, piece.counts) for piece in row.pieces] == [
        ("system", False), ("user", False), ("assistant", True), ("user", False), ("assistant", True),
    ]  # fmt: skip
    assert (row.line, row.characters, row.counted) == (1, 19, 4)
    (pair,) = seen(lines({"prompt": "Hi", "chosen": "Yo", "rejected": "No"})).shown
    assert [(p.part, p.text, p.counts) for p in pair.pieces] == [
        ("user", "Hi", False), ("chosen", "Yo", True), ("rejected", "No", True),
    ]  # fmt: skip
    (prompted,) = seen(lines({"prompt": [*CHAT, CHAT[0]], "completion": [CHAT[1]]})).shown
    assert [piece.counts for piece in prompted.pieces] == [False, False, False, True]
    lengths = seen(lines(*({"text": "x" * size} for size in range(1, 101)))).lengths
    assert lengths is not None
    assert (lengths.shortest, lengths.median, lengths.longest, sum(lengths.counts)) == (1, 50.5, 100, 100)
    assert len(lengths.edges) == len(lengths.counts) + 1


def test_each_fault_names_its_line_and_a_faulty_file_trains_nothing() -> None:
    good = {"prompt": "a", "response": "b"}
    found = seen(lines(good, {"prompt": "a", "answer": "b"}) + b"{nope\n" + b'{"prompt": "\xe9"}\n' + lines([1], good))
    assert found.use is None
    assert said(found) == [
        (2, "Line 2 of rows.jsonl: it has no column 'response', but prompt, answer."),
        (3, "Line 3 of rows.jsonl is not valid JSON (column 2: unexpected character, expected a string key)."),
        (4, "Line 4 of rows.jsonl is not UTF-8 text (byte 0xe9 at column 13)."),
        (5, "Line 5 of rows.jsonl holds a JSON list, not an object."),
    ]
    assert found.rows == 3, "the rest was looked at"
    many = seen(b"nope\n" * 100)
    assert (many.fault_count, len(many.faults), many.kind) == (100, FAULTS_SHOWN, None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", b"", "rows.jsonl has no rows."),
        ("rows.jsonl", b"\n \n", "rows.jsonl has no rows."),
        ("rows.jsonl", '{"text": "x"}'.encode("utf-16"), "Line 1 of rows.jsonl is UTF-16 text, not UTF-8."),
        ("rows.txt", b"x", "rows.txt has an unknown suffix '.txt'."),
        ("rows.json", b"{}", "rows.json is not a JSON array."),
        ("rows.csv", b"prompt,response\na,b\nc\n", "Line 3 of rows.csv does not have the 2 fields of the header."),
        ("r.jsonl", b'{"x": 1}\n', "r.jsonl has an unknown shape (columns: x)."),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_told_so(name: str, content: bytes, message: str) -> None:
    assert message in " ".join(text for _, text in said(seen(content, name)))


def test_only_a_part_of_a_large_file_is_read() -> None:
    given = 0

    def pieces() -> Iterator[bytes]:
        nonlocal given
        while True:
            given += 1
            yield lines({"text": "x" * 1000}) * 10

    found = look("rows.jsonl", pieces(), 1 << 40, most_bytes=100_000)
    assert (found.fault_count, found.kind) == (0, "text")
    assert found.unseen is not None
    assert given < 12
    assert 90 < found.rows < 110
    # A beginning that ends in the middle of a row is no fault of the row.
    whole = lines({"text": "first"}, {"text": "second"})
    cut = look("rows.jsonl", [whole[:25]], len(whole), most_bytes=25)
    assert (cut.rows, cut.fault_count, cut.unseen is None) == (1, 0, False)
    long = b'{"text": "' + b"x" * file_reader.MAX_AT_ONCE
    assert "longer than" in str(look("rows.jsonl", [long], len(long) + 2).unseen)
    assert look("rows.json", [b"[{"], 100).unseen is not None
    assert look("rows.parquet", [b"PAR1"], 4).unseen is not None


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("rows.jsonl", lines({"text": "a"}, {"text": "b"}), 1),
        ("rows.json", b'[{"text": "a"}, {"text": "b"}]', 1),
        ("rows.csv", b"prompt,response\na,b\nc,d\n", 0),
        ("rows.jsonl", b"\n" * 1000 + lines({"text": "a"}), 0),
        ("rows.csv", b"prompt,response\n" + b"\n" * 1000 + b"a,b\n", 0),
    ],
)
def test_a_file_is_looked_at_for_a_while_only(name: str, content: bytes, rows: int) -> None:
    found = seen(content, name, most_seconds=0.0)
    assert found.unseen is not None
    assert "in 0 seconds" in found.unseen
    assert (found.rows, found.fault_count) == (rows, 0)
    assert seen(content, name).unseen is None


def test_an_answer_is_small_however_wide_or_long_rows_are() -> None:
    wide = {f"column {number}": "x" for number in range(10_000)}
    found = seen(lines(*[{"prompt": "a", "response": "b", **wide}] * 2, *[wide] * FAULTS_SHOWN))
    assert (found.column_count, len(found.columns)) == (10_002, COLUMNS_SHOWN)
    assert (found.rows, found.fault_count) == (2 + FAULTS_SHOWN, FAULTS_SHOWN)
    assert len(found.model_dump_json()) < 50_000
    none = seen(lines(wide))
    assert len(none.model_dump_json()) < 20_000
    assert none.faults[0].message.endswith("…")
    (row,) = seen(lines({"messages": CHAT * 5000})).shown
    assert (row.piece_count, len(row.pieces), row.characters) == (10_000, PIECES_SHOWN, 20_000)
    long = [{**turn, "content": "x" * 9000} for turn in CHAT]
    (row,) = seen(lines({"messages": long * 20})).shown
    assert (row.piece_count, row.characters) == (40, 360_000)
    assert sum(len(piece.text) for piece in row.pieces) == ROW_SHOWN
