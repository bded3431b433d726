"""The steps of a `data` task: what they make of rows, what they count, and that they come out the same again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.libraries import required
from tunefleet.errors import DataError, SpecError
from tunefleet.spec import DataTaskSpec, load_task_spec


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Row, Source, random_draws, open_pipeline, trial, write
    pytest.importorskip("datasets")

    from tunefleet.workloads.data_pipeline import pipeline as random_draws
    from tunefleet.workloads.data_pipeline import trial
    from tunefleet.workloads.data_pipeline.inputs import Source
    from tunefleet.workloads.data_pipeline.row_types import Row
    from tunefleet.workloads.data_pipeline.run import open_pipeline
    from tunefleet.workloads.data_pipeline.writer import write


pytestmark = pytest.mark.torch


class Made:
    """What came out of a spec."""

    def __init__(self, folder: Path, *sources: Any, steps: Sequence[Any] = (), **more: Any) -> None:
        folder.mkdir(exist_ok=True)
        plain = [{"rows": each} if isinstance(each, list) else each for each in sources]
        spec = load_task_spec({"taskType": "data", "sources": plain, "steps": list(steps), **more})
        assert isinstance(spec, DataTaskSpec)
        from tunefleet.workloads.data_pipeline.run import open_pipeline

        self.said: list[str] = []
        pipeline, _ = open_pipeline(spec, {}, folder, say=self.said.append)
        self.rows = {name: [row.values for row in rows] for name, rows in pipeline.run().items()}
        self.counts = [count.as_json() for count in pipeline.counts]

    @property
    def train(self) -> list[dict[str, Any]]:
        return self.rows["train"]


def test_what_is_done_to_the_rows_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    steps = [{"shuffle": {"seed": 1}}, {"split": {"test": 0.1, "seed": 1}}]
    spec = load_task_spec({"taskType": "data", "sources": [{"rows": numbers(2500)}], "steps": steps})
    assert isinstance(spec, DataTaskSpec)

    def tell(phase: str, done: int = 0, total: int = 0) -> None:
        told.append((phase, done, total))

    pipeline, _ = open_pipeline(spec, {}, tmp_path, say=lambda _: None, tell=tell)
    assert sum(len(list(rows)) for rows in pipeline.run().values()) == 2500
    assert told == [
        *(("reading", done, 0) for done in (0, 1000, 2000)),
        *(("shuffling", done, 2500) for done in (0, 1000, 2000)),
        ("splitting", 0, 0),
    ]


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(count)]


TEXTS = [{"t": "short"}, {"t": "a much longer text"}, {"t": "  "}, {"t": "short"}]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ({"column": "t", "not_empty": True}, [0, 1, 3]),
        ({"column": "missing", "not_empty": False}, [0, 1, 2, 3]),
        ({"column": "t", "min_chars": 6}, [1]),
        ({"column": "t", "max_words": 1, "matches": "^s"}, [0, 3]),
        ({"any": [{"column": "t", "equals": "short"}, {"column": "t", "min_words": 4}]}, [0, 1, 3]),
        ({"not": {"column": "t", "in": ["short"]}}, [1, 2]),
    ],
    ids=["not-empty", "absent", "chars", "words-and-regex", "any", "not"],
)
def test_a_condition_keeps_the_rows_that_it_is_true_of(tmp_path: Path, condition: Any, kept: list[int]) -> None:
    made = Made(tmp_path, TEXTS, steps=[{"filter": condition}])
    assert made.train == [TEXTS[n] for n in kept]
    assert (made.counts[-1]["rows_in"], made.counts[-1]["rows_out"]) == (4, len(kept))


def test_tokens_are_counted_by_the_tokenizer_that_is_named(tmp_path: Path) -> None:
    condition = {"column": "t", "max_tokens": 3, "tokenizer": "builtin:gsm8k-llama-2m"}
    assert {"t": "a much longer text"} not in Made(tmp_path, TEXTS, steps=[{"filter": condition}]).train


def test_columns_are_changed_in_the_order_of_the_keys(tmp_path: Path) -> None:
    row = {"question": " 1+1? ", "answer": "2", "id": 7, "left": None}
    step = {
        "strip": ["question"], "cast": {"answer": "int"}, "rename": {"question": "prompt"},
        "template": {"text": "{{Q}} {prompt}\n{answer}"}, "constant": {"of": "maths"}, "drop": ["left"],
    }  # fmt: skip
    made = Made(tmp_path, [row], steps=[{"map": step}, {"map": {"keep": ["text", "of", "answer"]}}])
    assert made.train == [{"text": "{Q} 1+1?\n2", "of": "maths", "answer": 2}]


PAIRS_TO_CHATS = {"convert": {"to": "messages", "from": "prompt_response"}}
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


@pytest.mark.parametrize(
    ("row", "to", "made", "recognised"),
    [
        ({"instruction": "add", "input": "1+1", "output": "2"}, "prompt_response",
         {"prompt": "add\n\n1+1", "response": "2"}, "Alpaca rows (instruction, input, output)"),
        ({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}, "messages",
         {"messages": CHAT}, "ShareGPT conversations"),
        ({"text": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"}, "messages",
         {"messages": CHAT}, "ChatML texts"),
        ({"messages": CHAT, "id": 3}, "prompt_response", {"prompt": "hi", "response": "hello"}, "chats of messages"),
        ({"question": "q", "answer": "a"}, "text", {"text": "q\n\na"}, "prompts and responses (question, answer)"),
        ({"prompt": [*CHAT, CHAT[0]], "completion": [CHAT[1]]}, "messages",
         {"messages": [CHAT[0], {**CHAT[1], "weight": 0}, *CHAT]}, "prompts and responses (prompt, completion)"),
        ({"system": "Be kind.", "prompt": "q", "response": "a"}, "messages",
         {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "q"},
                       {"role": "assistant", "content": "a"}]}, "prompts and responses"),
        ({"prompt": "q", "chosen": "good", "rejected": "bad"}, "preference",
         {"prompt": "q", "chosen": "good", "rejected": "bad"}, "preference pairs"),
        ({"chosen": CHAT, "rejected": [CHAT[0], {"role": "assistant", "content": "go away"}]}, "preference",
         {"prompt": [CHAT[0]], "chosen": [CHAT[1]], "rejected": [{"role": "assistant", "content": "go away"}]},
         "preference pairs"),
        ({"chosen": "\n\nHuman: hi\n\nAssistant: hello", "rejected": "\n\nHuman: hi\n\nAssistant: go away"},
         "preference",
         {"prompt": [CHAT[0]], "chosen": [CHAT[1]], "rejected": [{"role": "assistant", "content": "go away"}]},
         "complete dialogues"),
    ],
    ids=["alpaca", "sharegpt", "chatml", "messages", "pair-to-text", "prompted", "system", "preference",
         "conversations", "hh"],
)  # fmt: skip
def test_a_shape_is_recognised_said_and_converted(
    tmp_path: Path, row: Any, to: str, made: dict[str, Any], recognised: str
) -> None:
    found = Made(tmp_path, [row], steps=[{"convert": to}])
    assert found.train == [made]
    assert recognised in found.said[0]


USER, ANSWER = CHAT


@pytest.mark.parametrize(
    ("rows", "to", "made"),
    [
        ([{"instruction": "a", "output": "1"}, {"instruction": "b", "input": "in", "output": "2"}], "prompt_response",
         [{"prompt": "a", "response": "1"}, {"prompt": "b\n\nin", "response": "2"}]),
        ([{"prompt": "hi", "response": "hello"}, {"system": "Be kind.", "prompt": "hi", "response": "hello"},
          {"system": "", "system_prompt": "Be brief.", "prompt": "hi", "response": "hello"}], "messages",
         [{"messages": CHAT}, {"messages": [{"role": "system", "content": "Be kind."}, *CHAT]},
          {"messages": [{"role": "system", "content": "Be brief."}, *CHAT]}]),
        ([{"question": "q", "chosen": "good", "rejected": "bad"},
          {"question": "", "instruction": "i", "chosen": "good", "rejected": "bad"}], "preference",
         [{"prompt": "q", "chosen": "good", "rejected": "bad"}, {"prompt": "i", "chosen": "good", "rejected": "bad"}]),
        ([{"chosen": "\n\nHuman: hi\n\nAssistant: a", "rejected": "\n\nHuman: hi\n\nAssistant: b"},
          {"prompt": "q", "chosen": "good", "rejected": "bad"}], "preference",
         [{"prompt": [USER], "chosen": [{"role": "assistant", "content": "a"}],
           "rejected": [{"role": "assistant", "content": "b"}]},
          {"prompt": "q", "chosen": "good", "rejected": "bad"}]),
        ([{"messages": [*CHAT, USER]}], "messages", [{"messages": [*CHAT, USER]}]),
    ],
    ids=["alpaca-input", "system", "prompt-of-a-preference", "dialogue-then-prompt", "ends-with-a-question"],
)  # fmt: skip
def test_a_column_that_not_every_row_has_is_looked_up_in_each(tmp_path: Path, rows: Any, to: str, made: Any) -> None:
    assert Made(tmp_path, rows, steps=[{"convert": to}]).train == made


@pytest.mark.parametrize(
    ("rows", "step", "said"),
    [
        ([{"prompt": "a", "response": "b"}, {"prompt": "a"}], PAIRS_TO_CHATS,
         "Step 1 (convert) failed on row 2 of mine: it has no column 'response', but prompt"),
        ([{"messages": CHAT + CHAT}], {"convert": "prompt_response"}, "it has 3 turns before its last answer"),
        ([{"t": "x"}], {"filter": {"column": "size", "gt": 3}}, "it has no column 'size'; it has t"),
        ([{"n": "x"}], {"map": {"cast": {"n": "int"}}}, "'n' cannot be read as int"),
    ],
    ids=["lacks-a-part", "several-turns", "no-column", "no-number"],
)  # fmt: skip
def test_a_row_that_does_not_fit_is_named_or_counted(tmp_path: Path, rows: Any, step: Any, said: str) -> None:
    with pytest.raises(DataError) as caught:
        Made(tmp_path / "fails", {"name": "mine", "rows": rows}, steps=[step])
    assert said in str(caught.value)
    good = {"prompt": "a", "response": "b", "messages": CHAT, "size": 5, "n": "3"}
    made = Made(tmp_path / "drops", {"rows": [good, *rows]}, steps=[step], on_bad="drop")
    assert made.counts[-1]["bad"] == 1


def test_a_broken_line_is_named_or_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"n": 1}\n{"n": \n{"n": 3}\n')
    source = {"jsonl": {"worker_path": str(file)}}
    with pytest.raises(DataError, match=r"Line 2 of a\.jsonl"):
        Made(tmp_path / "fails", source)
    made = Made(tmp_path / "drops", source, on_bad="drop")
    assert (made.train, made.counts[0]["bad"], made.counts[0]["rows_in"]) == ([{"n": 1}, {"n": 3}], 1, 3)


def test_of_equal_rows_the_first_stays_and_near_ones_are_found(tmp_path: Path) -> None:
    required("datasketch")
    long = "the quick brown fox jumps over the lazy dog and runs far away into the deep dark green forest"
    rows = [{"t": long, "id": 1}, {"t": long, "id": 2}, {"t": f"{long} now", "id": 3}, {"t": "else", "id": 4}]
    assert len(Made(tmp_path / "all", rows, steps=["dedupe"]).train) == 4, "they differ by their ids"
    exact = Made(tmp_path / "exact", rows, steps=[{"dedupe": {"columns": ["t"]}}])
    assert [row["id"] for row in exact.train] == [1, 3, 4]
    near = Made(tmp_path / "near", rows, steps=[{"dedupe": {"columns": ["t"], "near": {"threshold": 0.7}}}])
    assert [row["id"] for row in near.train] == [1, 4]
    assert (near.counts[-1]["duplicates"], near.counts[-1]["near_duplicates"]) == (1, 1)


def test_a_mixture_keeps_the_weights_and_depends_on_seed_and_number_alone(tmp_path: Path) -> None:
    sources = ({"rows": [{"a": n} for n in range(3000)], "weight": 3}, {"rows": [{"b": n} for n in range(3000)]})
    made = Made(tmp_path / "one", *sources, steps=[{"mix": {"seed": 5}}])
    assert made.train[:50] == Made(tmp_path / "two", *sources, steps=[{"mix": {"seed": 5}}]).train[:50]
    taken = made.counts[-1]["taken"]
    assert taken["sources.0"] == 3000, "it ends where the first source does"
    assert taken["sources.0"] / taken["sources.1"] == pytest.approx(3, rel=0.1)
    assert [row["a"] for row in made.train if "a" in row] == list(range(3000)), "within a source the order stays"
    want = ["a" if random_draws.source_of(5, n, [3.0, 1.0]) == 0 else "b" for n in range(50)]
    assert [next(iter(row)) for row in made.train[:50]] == want


def test_a_short_source_begins_again_until_all_were_taken(tmp_path: Path) -> None:
    sources = ([{"a": n} for n in range(100)], [{"b": n} for n in range(3)])
    made = Made(tmp_path, *sources, steps=[{"mix": {"until": "all_exhausted"}}])
    assert [row["a"] for row in made.train if "a" in row][:100] == list(range(100))
    again = [row["b"] for row in made.train if "b" in row]
    assert again == [n % 3 for n in range(len(again))]
    assert len(again) > 3


def test_shuffle_sample_and_split_are_the_same_again_and_lose_nothing(tmp_path: Path) -> None:
    steps = [{"shuffle": {"seed": 1}}, {"sample": {"count": 80, "seed": 2}}, {"split": {"test": 0.25, "seed": 3}}]
    made = Made(tmp_path / "one", numbers(100), steps=steps)
    assert made.rows == Made(tmp_path / "two", numbers(100), steps=steps).rows
    assert {name: len(rows) for name, rows in made.rows.items()} == {"train": 60, "test": 20}
    assert len({row["n"] for rows in made.rows.values() for row in rows}) == 80
    # A release of Python or NumPy must not draw others.
    assert random_draws.order("shuffle", 0, 8).tolist() == ORDER
    with pytest.raises(DataError, match="leaves one side empty"):
        Made(tmp_path / "three", numbers(3), steps=[{"split": {"test": 3}}])


ORDER = [4, 1, 6, 2, 3, 7, 0, 5]


def test_equal_rows_are_on_one_side_of_a_split(tmp_path: Path) -> None:
    # Twenty rows, the first ten of them many times: what a mixture until all_exhausted makes of a short source.
    rows = [{"n": n, "t": {"a": 1, "b": 2}} for n in range(20)] + [
        {"t": {"b": 2, "a": 1}, "n": n % 10} for n in range(99)
    ]
    steps = [{"split": {"test": 0.25, "validation": 3, "seed": 3}}]
    made = Made(tmp_path / "one", rows, steps=steps)
    sides = {name: {row["n"] for row in part} for name, part in made.rows.items()}
    assert {name: len(side) for name, side in sides.items()} == {"train": 12, "test": 5, "validation": 3}
    assert len(set.union(*sides.values())) == 20, "no row is on two sides"
    assert sum(len(part) for part in made.rows.values()) == 119
    assert made.counts[-1]["duplicates"] == 99
    assert made.rows == Made(tmp_path / "two", rows, steps=steps).rows


@pytest.mark.parametrize("until", ["first_exhausted", "all_exhausted"])
def test_a_source_without_rows_is_not_mixed(tmp_path: Path, until: str) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    empty = {"jsonl": {"worker_path": str(tmp_path / "empty.jsonl")}, "name": "none here", "weight": 0.001}
    with pytest.raises(DataError, match="none here has no row to mix"):
        Made(tmp_path / "fails", numbers(200), empty, steps=[{"mix": {"until": until}}])


def test_a_sample_of_nothing_is_an_error_that_names_the_step(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"step 1 \(sample\) drops all 2 rows"):
        Made(tmp_path, numbers(2), steps=[{"sample": {"fraction": 0.1}}])


@pytest.mark.parametrize(
    ("value", "said", "hint"),
    [
        (float("nan"), r"'x' that is not finite", "Write null"),
        ([{"y": float("inf")}], r"'x' that is not finite", "Write null"),
        (2**70, "64-bit", "as a text"),
        (b"\x89PNG", "holds a value that JSON cannot", "Images and bytes"),
    ],
    ids=["nan", "deep-infinity", "beyond-64-bits", "bytes"],
)
def test_a_value_that_json_cannot_hold_is_named_or_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, said: str, hint: str
) -> None:
    # Only files of other formats hold such values; a document that has them is refused before.
    rows = [{"x": 1}, {"x": value}]
    monkeypatch.setattr(Source, "_values", lambda _self, _bad: iter(rows))
    with pytest.raises(DataError, match=rf"Row 2 of sources\.0.*{said}") as caught:
        Made(tmp_path / "fails", numbers(1))
    assert hint in str(caught.value.hint)
    made = Made(tmp_path / "drops", numbers(1), on_bad="drop")
    assert (made.train, made.counts[0]["bad"], made.counts[0]["rows_in"]) == ([{"x": 1}], 1, 2)


@pytest.mark.parametrize(
    ("kind", "value"), [("float", "nan"), ("int", str(2**70)), ("json", "[NaN]"), ("json", f"[{2**70}]")]
)
def test_a_cast_makes_nothing_that_json_cannot_hold(tmp_path: Path, kind: str, value: str) -> None:
    with pytest.raises(DataError, match=f"'x' cannot be read as {kind}"):
        Made(tmp_path, [{"x": value}], steps=[{"map": {"cast": {"x": kind}}}])


def test_what_waited_on_disk_is_found_again_after_a_kill(tmp_path: Path) -> None:
    steps = [{"filter": {"column": "n", "lt": 50}}, "shuffle", {"map": {"constant": {"c": 1}}}]
    first = Made(tmp_path, numbers(100), steps=steps)
    again = Made(tmp_path, numbers(100)[:3], steps=steps)  # the source is not read a second time
    assert (again.train, again.counts) == (first.train, first.counts)


def test_nothing_left_is_an_error_that_names_the_step(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"step 1 \(filter\) drops all 5 rows"):
        Made(tmp_path, numbers(5), steps=[{"filter": {"column": "n", "gt": 9}}])


def test_parts_of_a_spread_task_are_the_whole_in_order(tmp_path: Path) -> None:
    steps = [{"filter": {"column": "n", "not_equals": 3}}]
    parts = [Made(tmp_path / str(n), numbers(10), steps=steps, shard={"index": n, "total": 3}).train for n in range(3)]
    assert [row for part in parts for row in part] == Made(tmp_path / "all", numbers(10), steps=steps).train
    assert all(parts)


def test_a_part_that_is_left_with_nothing_is_none_the_worse(tmp_path: Path) -> None:
    steps = [{"filter": {"column": "n", "ge": 5}}]
    parts = [Made(tmp_path / str(n), numbers(10), steps=steps, shard={"index": n, "total": 3}).train for n in range(3)]
    assert (parts[0], [row["n"] for part in parts for row in part]) == ([], [5, 6, 7, 8, 9])


def test_parquet_has_every_column_or_says_why_not(tmp_path: Path) -> None:
    rows = [Row({"a": n, **({"b": "x"} if n == 7 else {})}, 0, n + 1) for n in range(10)]
    about = write(rows, tmp_path / "a.parquet", "parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    assert (about["rows"], table.column_names, table.to_pylist()[7]) == (10, ["a", "b"], {"a": 7, "b": "x"})
    written = write(rows, tmp_path / "a.jsonl", "jsonl")
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()] == [
        row.values for row in rows
    ]
    assert written["bytes"] == (tmp_path / "a.jsonl").stat().st_size


MANY = 10_000
"""Rows of one group of a Parquet file."""


def late(first: Any, last: Any) -> list[Row]:
    """Rows whose last one, behind a whole group of others, has another value."""
    return [*(Row({"a": first}, 0, n + 1) for n in range(MANY)), Row({"a": last}, 1, 1)]


@pytest.mark.parametrize(
    ("first", "last", "read"),
    [
        (1, 1.5, (1.0, 1.5)),
        (1.5, 1, (1.5, 1.0)),
        ({"k": 1}, {"k": 2, "new": "x"}, ({"k": 1, "new": None}, {"k": 2, "new": "x"})),
        (None, "text", (None, "text")),
        ([], [{"role": "user"}], ([], [{"role": "user"}])),
        (1, 2**53 + 1, (1, 2**53 + 1)),
        (2**53 + 1, -1, (2**53 + 1, -1)),
        (5, 2**64 - 1, (5, 2**64 - 1)),
    ],
    ids=["int-float", "float-int", "key-of-a-mapping", "null-first", "empty-list-first", "large", "signed", "unsigned"],
)
def test_parquet_keeps_values_whose_type_shows_late(tmp_path: Path, first: Any, last: Any, read: Any) -> None:
    about = write(late(first, last), tmp_path / "a.parquet", "parquet")
    rows = pq.read_table(tmp_path / "a.parquet").column("a")
    assert (about["rows"], rows[0].as_py(), rows[MANY].as_py()) == (MANY + 1, *read)
    assert {type(rows[0].as_py()), type(rows[MANY].as_py())} == {type(each) for each in read}
    assert about["sha256"] == write(late(first, last), tmp_path / "b.parquet", "parquet")["sha256"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"], "nothing waits any more"


def test_parquet_has_a_column_that_shows_late(tmp_path: Path) -> None:
    rows = [*(Row({"a": n}, 0, n + 1) for n in range(MANY)), Row({"a": 1, "b": 2}, 0, MANY + 1)]
    write(rows, tmp_path / "a.parquet", "parquet")
    assert pq.read_table(tmp_path / "a.parquet").column("b").to_pylist() == [None] * MANY + [2]


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (1, "x", "'a' was int, and is text in it"),
        (1.5, True, "'a' was float, and is true or false in it"),
        (["x"], "x", "'a' was list, and is text in it"),
        ({"k": [1]}, {"k": ["x"]}, r"'a\.k\[\]' was int, and is text in it"),
        (0.5, 2**53 + 1, "'a' was float, and is int beyond 53 bits in it"),
        (-1, 2**63, "'a' was negative int, and is int beyond 63 bits in it"),
    ],
    ids=["text", "bool", "list", "deep", "no-float-has-it", "unsigned"],
)
def test_what_no_type_has_in_common_is_named(tmp_path: Path, first: Any, last: Any, said: str) -> None:
    with pytest.raises(DataError, match=rf"Row 10,001 \(number 1 of sources\.1\).*{said}"):
        write(late(first, last), tmp_path / "a.parquet", "parquet")
    assert not (tmp_path / "a.parquet").exists()
    with pytest.raises(DataError, match=r"'a\.b' holds only mappings without keys"):
        write([Row({"a": {"b": {}}}, 0, 1)], tmp_path / "a.parquet", "parquet")


def test_a_trial_shows_what_the_steps_make_of_the_first_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps({"prompt": n, "response": n}) + "\n" for n in range(500)))
    document = tmp_path / "task.yaml"
    steps = [{"convert": "messages"}, {"split": {"test": 0.5}}]
    spec = {"taskType": "data", "sources": [{"path": "mine.jsonl"}], "steps": steps}
    document.write_text(json.dumps({"apiVersion": "tunefleet/v1", "spec": spec}))
    assert trial.main([str(document), "--rows", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["messages"][0]["content"] for row in told["rows"]] == ["0", "1"]
    assert told["steps"][-1]["rows_out"] == trial.READ_ROWS
    assert told["left_out"] == ["split"]
    document.write_text(document.read_text().replace("mine.jsonl", "none.jsonl"))
    assert trial.main([str(document)]) == 2
    assert "none.jsonl" in json.loads(capsys.readouterr().out)["error"]


def test_a_slice_is_the_rows_from_one_number_to_another(tmp_path: Path) -> None:
    made = Made(tmp_path, numbers(10), steps=[{"shuffle": {"seed": 5}}, {"slice": {"start": 3, "stop": 7}}])
    whole = Made(tmp_path / "whole", numbers(10), steps=[{"shuffle": {"seed": 5}}])
    assert made.train == whole.train[3:7]
    assert Made(tmp_path / "rest", numbers(4), steps=[{"slice": {"start": 2}}]).train == [{"n": 2}, {"n": 3}]


def test_slices_next_to_each_other_have_every_row_once(tmp_path: Path) -> None:
    parts = [
        Made(
            tmp_path / str(start),
            numbers(7),
            steps=[{"shuffle": {"seed": 1}}, {"slice": {"start": start, "stop": start + 3}}],
        )
        for start in (0, 3, 6)
    ]
    assert sorted(row["n"] for part in parts for row in part.train) == list(range(7))


def test_a_chat_whose_messages_have_other_fields_becomes_one(tmp_path: Path) -> None:
    row = {"turns": [{"who": "USER", "says": "Hello"}, {"who": "BOT", "says": "Hi"}, {"who": "system", "says": "x"}]}
    fields = {"role": "who", "content": "says", "roles": {"USER": "user", "BOT": "assistant"}}
    made = Made(tmp_path, [row], steps=[{"map": {"chat": {"turns": fields}}}])
    assert made.train == [
        {
            "turns": [
                {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": "Hi"},
                {"role": "system", "content": "x"},
            ]
        }
    ]


def test_a_message_without_its_fields_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a message without 'who' and 'says'"):
        Made(
            tmp_path,
            [{"turns": [{"role": "user"}]}],
            steps=[{"map": {"chat": {"turns": {"role": "who", "content": "says"}}}}],
        ).rows


def test_a_preview_says_of_which_columns_it_speaks_and_is_of_one_worker() -> None:
    base = {"taskType": "data", "sources": [{"path": "rows.jsonl"}]}
    good = load_task_spec({**base, "preview": {"model": "builtin:gsm8k-llama-2m", "messages_field": "chat"}})
    assert isinstance(good, DataTaskSpec)
    assert good.preview is not None
    assert good.preview.shape.messages == "chat"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"preview": {"model": "m", "prompt_column": "q"}}, "response_column"),
        ({"preview": {"model": "m", "text_field": "t", "messages_field": "m"}}, "has several keys"),
        ({"preview": {"model": "m"}, "parallel": {"enabled": True}}, "remove parallel"),
    ]
    for blocks, said in wrong:
        with pytest.raises(SpecError, match=said):
            load_task_spec({**base, **blocks})
