from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import DataError
from tunefleet.spec import TextShape
from tunefleet.workloads.data.formats import Chat, Pair, Plain, choose

AUTO = TextShape("auto", separator="\n")


@pytest.mark.parametrize(
    ("row", "example"),
    [
        ({"text": "a"}, Plain("a")),
        ({"prompt": "a", "response": 7}, Pair("a\n", "7")),
        ({"prompt": "a", "completion": "b", "text": "c"}, Pair("a\n", "b")),
    ],
)
def test_usual_columns_decide_when_nothing_is_said(row: dict[str, Any], example: object) -> None:
    assert choose(AUTO, row, "rows").read(1, row) == example


def test_conversations_are_understood_in_both_vocabularies() -> None:
    wanted = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    for column, messages in (
        ("messages", [{**message, "name": None} for message in wanted]),
        ("conversations", [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]),
    ):
        row = {column: messages, "tools": '[{"type": "function"}]'}
        assert choose(AUTO, row, "rows").read(1, row) == Chat(wanted, [{"type": "function"}])


def test_named_columns_win() -> None:
    row = {"messages": [], "q": "1+1", "a": "2"}
    shape = choose(TextShape("pair", prompt="q", response="a", separator=" = "), row, "rows")
    assert shape.read(1, row) == Pair("1+1 = ", "2")
    assert shape.columns == ("q", "a")


def test_a_pair_becomes_a_chat_where_the_spec_says_so() -> None:
    chat = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    row = {"q": "1+1", "a": "2"}
    shape = choose(TextShape("pair", prompt="q", response="a", as_chat=True), row, "rows")
    assert shape.read(1, row) == Chat(chat, prompt=1)
    assert shape.kind == "messages"
    alpaca = {"instruction": "Add.", "input": "1+1", "output": "2"}
    found = choose(TextShape("auto", separator="\n", as_chat=True), alpaca, "rows").read(1, alpaca)
    assert found == Chat([{"role": "user", "content": "Add.\n1+1"}, chat[1]], prompt=1)
    turns = {"messages": [*chat, {"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]}
    wanted = TextShape("auto", as_chat=True)
    assert choose(wanted, turns, "rows").read(1, turns) == Chat(turns["messages"]), "both answers are trained"
    text = {"text": "a"}
    assert choose(TextShape("auto", as_chat=True), text, "rows").read(1, text) == Plain("a")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (TextShape("pair", prompt="sum", response="totl"), r"sums\.csv has no column 'totl'.*It has: sum, total"),
        (TextShape("text", text="body"), r"sums\.csv has no column 'body'"),
        (AUTO, r"sums\.csv has an unknown shape"),
    ],
)
def test_a_missing_column_lists_those_that_exist(wanted: TextShape, message: str) -> None:
    with pytest.raises(DataError, match=message):
        choose(wanted, {"sum": "1+1", "total": "2"}, "sums.csv")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": None}, r"Row 3 of rows: 'text' holds nothing \(null\), not a text"),
        ({"text": ["a"]}, r"Row 3 of rows: 'text' holds a list, not a text.*messages_field: text"),
        ({"other": "a"}, r"Row 3 of rows: it has no column 'text', but other"),
    ],
)
def test_a_row_that_is_not_text_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        choose(TextShape("text"), {"text": ""}, "rows").read(3, row)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "holds a text that is not valid JSON"),
        ([], "empty conversation"),
        (["hello"], "holds a text among its messages"),
        ([{"role": "user"}], "message of the user without content"),
        ([{"role": "user", "content": "hi"}], "no message of the assistant"),
    ],
)
def test_a_conversation_that_cannot_be_learnt_is_named(messages: Any, message: str) -> None:
    with pytest.raises(DataError, match=rf"Row 2 of rows.*{message}"):
        choose(TextShape("messages"), {"messages": []}, "rows").read(2, {"messages": messages})
