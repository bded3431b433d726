"""Items out of `spec.data`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tunefleet.errors import DataError
from tunefleet.spec.options.policy import ShardSpec
from tunefleet.spec.options.prompts import InferenceData, PromptData


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Item, read_items, shuffled
    pytest.importorskip("datasets")

    from tunefleet.workloads.inference.items import Item, read_items, shuffled


ROWS: list[dict[str, Any]] = [{"text": f"t{n}", "answer": str(n), "tags": [n]} for n in range(10)]


def read(data: Mapping[str, Any], local: Path | None = None, shard: ShardSpec | None = None) -> list[Item]:
    inputs = {} if local is None else {"data.url": str(local)}
    return read_items(PromptData.model_validate(data), inputs, Path("unused"), shard=shard)


def texts(items: list[Item]) -> list[str]:
    return [item.text for item in items]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "folder"])
def test_a_file_that_travelled_is_read_whatever_its_format(tmp_path: Path, kind: str) -> None:
    plain = [{"text": row["text"], "answer": row["answer"]} for row in ROWS]
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in plain))
    elif kind == "csv":
        path.write_text("text,answer\n" + "".join(f"{row['text']},{row['answer']}\n" for row in plain))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(plain), path)
    else:
        path.mkdir()
        (path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    data = {"type": "dataset", "url": "./rows", "split": "test[2:4]", "metadata_include_all": True}
    assert read(data, path) == [Item(row["text"], row) for row in plain[2:4]]


def test_columns_are_kept_under_their_own_name_or_another(rows: Path) -> None:
    data = {"type": "dataset", "url": "./rows", "column": "answer"}
    assert read({**data, "metadata_columns": ["tags"]}, rows)[3] == Item("3", {"tags": [3]})
    assert read({**data, "metadata_columns": {"text": "question"}}, rows)[3] == Item("3", {"question": "t3"})
    assert read(data, rows)[3] == Item("3", {})


@pytest.mark.parametrize("buffer_size", [None, 1, 4, 10, 99])
def test_a_shuffle_has_every_row_once_and_is_the_same_for_the_same_seed(buffer_size: int | None) -> None:
    order = list(shuffled(50, 7, buffer_size))
    assert sorted(order) == list(range(50))
    assert order == list(shuffled(50, 7, buffer_size))
    assert (order == list(range(50))) == (buffer_size == 1)
    assert buffer_size == 1 or order != list(shuffled(50, 8, buffer_size))
    if buffer_size == 4:
        # The n-th is drawn among the first n + 4.
        assert all(position < place + 4 for place, position in enumerate(order))


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_parts_have_every_item_once_in_an_order_that_all_agree_on(rows: Path, contiguous: bool, shuffle: bool) -> None:
    data = {"type": "dataset", "url": "./rows", "shuffle": shuffle}
    whole = texts(read(data, rows))
    parts = [texts(read(data, rows, ShardSpec(index=at, total=4, contiguous=contiguous))) for at in range(4)]
    assert [len(part) for part in parts] == ([2, 3, 2, 3] if contiguous else [3, 3, 2, 2])
    if contiguous:
        assert list(itertools.chain(*parts)) == whole
    else:
        assert all(parts[at] == whole[at::4] for at in range(4))


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
SHAREGPT = [{"from": "human", "value": "Why?"}]
CALLED = [
    {"role": "user", "content": "How warm?"},
    {"role": "assistant", "content": "", "tool_calls": [{"name": "temperature", "arguments": {"b": 1, "a": 2}}]},
    {"role": "tool", "content": "21"},
]


@pytest.mark.parametrize(
    ("chat", "text", "roles"),
    [
        (CHAT, "Why?", ["system", "user"]),
        (SHAREGPT, "Why?", ["user"]),
        (CALLED, "21", ["user", "assistant", "tool"]),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "ab", ["user"]),
    ],
    ids=["openai", "sharegpt", "tools", "parts"],
)
@pytest.mark.parametrize("written", [True, False], ids=["list", "dataset"])
def test_an_item_of_an_inference_may_be_a_chat(
    tmp_path: Path, chat: list[Any], text: str, roles: list[str], written: bool
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": chat}) + "\n")
    listed = {"type": "list", "items": ["plain", chat]}
    data = listed if written else {"type": "dataset", "url": "rows", "column": "messages"}
    inputs = {} if written else {"data.url": str(file)}
    item = read_items(InferenceData.model_validate(data), inputs, Path("unused"))[-1]
    assert (item.text, [message["role"] for message in item.chat]) == (text, roles)


@pytest.mark.parametrize(
    ("value", "text", "messages"),
    [
        ({"role": ["system", "user"], "content": ["Be brief.", "Why?"]}, "Why?", 2),
        (json.dumps(CHAT), "Why?", 2),
        ("[1] is no chat", "[1] is no chat", 0),
        ('["a", "b"]', '["a", "b"]', 0),
    ],
)
def test_a_column_may_hold_chats_as_tables_and_as_text_do(tmp_path: Path, value: Any, text: str, messages: int) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"text": value}) + "\n")
    data = InferenceData.model_validate({"type": "dataset", "url": "rows"})
    (item,) = read_items(data, {"data.url": str(file)}, Path("unused"))
    assert (item.text, len(item.chat)) == (text, messages)


@pytest.mark.parametrize(
    ("chat", "says"),
    [
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            "ends with the assistant's own answer",
        ),
        ([{"role": "user", "content": None}], "has a message of the user without content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "part of type 'image_url'"),
        (["hi"], "among its messages"),
        ([], "is an empty conversation"),
    ],
)
def test_a_chat_that_cannot_be_answered_is_named_by_its_place(tmp_path: Path, chat: list[Any], says: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": CHAT}) + "\n" + json.dumps({"messages": chat}) + "\n")
    data = InferenceData.model_validate({"type": "dataset", "url": "rows", "column": "messages"})
    with pytest.raises(DataError) as caught:
        read_items(data, {"data.url": str(file)}, Path("unused"))
    assert str(caught.value).startswith("Row 2 of rows: ")
    assert says in str(caught.value)


def test_a_list_has_its_metadata_and_a_template_without_references_is_a_list_too() -> None:
    notes = [{"k": 1}, {"k": 2}]
    assert read({"type": "list", "items": ["a", "b"], "items_metadata": notes}) == [
        Item("a", {"k": 1}),
        Item("b", {"k": 2}),
    ]
    columns = [{"label": "x", "data": {"items": ["1"]}}]
    made = {
        "type": "graph_template",
        "template": {"name": "own", "text": "{col0_label}={col0_value}", "columns": columns},
    }
    assert texts(read(made)) == ['x=["1"]']
    assert read({"type": "list", "items": ["a"]}, shard=ShardSpec(index=1, total=2)) == [Item("a", {})]
    assert read({"type": "list", "items": ["a"]}, shard=ShardSpec(index=0, total=2)) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"column": "nope"}, "./rows has no column 'nope'. Set `data.column`. It has: answer, tags, text."),
        ({"metadata_columns": ["nope"]}, "Correct `data.metadata_columns`"),
        ({"column": "tags"}, "Row 1 of ./rows has a list in 'tags', not text."),
        ({"split": "train[90%:99%"}, "Cannot parse split"),
        ({"split": "train[20:]"}, "./rows has no rows"),
    ],
    ids=["column", "metadata", "list", "split", "slice"],
)
def test_what_is_wrong_is_named(rows: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError) as caught:
        read({"type": "dataset", "url": "./rows", **changes}, rows)
    assert says in str(caught.value)


def test_a_row_without_text_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n{"text": null}\n')
    with pytest.raises(DataError, match="Row 2 of rows has nothing in 'text', not text"):
        read({"type": "dataset", "url": "rows", "shuffle": True}, file)
