"""Chat messages in every common form are read into one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tunefleet.analysis.dataset.messages import RowError, read_flag, read_messages, read_tools
from tunefleet.analysis.dataset.notes import Notes

TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}


@pytest.mark.parametrize(
    "given",
    [
        TALK,
        json.dumps(TALK),
        {"role": ["user", "assistant"], "content": ["Hi", "Yo"]},
        [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}],
        {"from": ["human", "gpt"], "value": ["Hi", "Yo"], "weight": [None, None]},
        [{"role": "User", "content": "Hi"}, {"role": "model", "content": "Yo"}],
        [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}, TALK[1]],
        [{"role": "user", "content": ["Hi"], "name": None, "tool_calls": None}, TALK[1]],
    ],
)
def test_a_chat_is_the_same_in_every_form(given: Any) -> None:
    assert list(read_messages(given, "messages")) == TALK


@pytest.mark.parametrize(
    "given",
    [
        {"from": "function_call", "value": json.dumps({"name": "weather", "arguments": {"city": "Ulm"}})},
        {"role": "tool_call", "content": json.dumps([{"name": "weather", "arguments": {"city": "Ulm"}}])},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": "", "tool_calls": json.dumps([CALL])},
        {"role": "assistant", "content": "", "tool_calls": {name: [value] for name, value in CALL.items()}},
        {"role": "assistant", "function_call": {"name": "weather", "arguments": '{"city": "Ulm"}'}},
        {
            "role": "assistant",
            "tool_calls": [{**CALL, "function": {"name": "weather", "arguments": {"city": "Ulm", "x": None}}}],
        },
    ],
)
def test_a_tool_call_is_the_same_in_every_form(given: Any) -> None:
    (message,) = read_messages([given], "messages")
    assert message == {"role": "assistant", "content": "", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "'chat' is an empty conversation"),
        ("[]", "empty conversation"),
        ("hello", "not valid JSON"),
        (7, "holds a number, not a list of messages"),
        (None, r"holds nothing \(null\)"),
        (["hello"], "holds a text among its messages"),
        ([{"content": "Hi"}], "message without a role"),
        ([{"role": "user"}], "message of the user without content"),
        ([{"role": "user", "content": {"text": "Hi"}}], "whose content is a mapping"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "type 'image_url'; only text"),
        ([{"role": "user", "content": True}], "whose content is true or false"),
        ([{"from": "function_call", "value": "weather(Ulm)"}], "not valid JSON"),
        ([{"role": "assistant", "tool_calls": [{"arguments": {}}]}], "without a function name"),
        ("[" * 3000, "not valid JSON|nested too deeply"),
        ([{"role": "user", "content": "a\ud800"}], "lone surrogate"),
        ([{"role": "assistant", "content": "x", "weight": 0.5}], r"weight: 0.5.*trained \(1\) or not \(0\)"),
    ],
)
def test_what_is_no_chat_is_refused(given: Any, message: str) -> None:
    with pytest.raises(RowError, match=message):
        read_messages(given, "chat")


@pytest.mark.parametrize(
    ("key", "value"), [("weight", 0), ("weight", 0.0), ("train", False), ("training", "false"), ("loss", False)]
)
def test_an_answer_that_is_not_to_be_trained_has_weight_zero(key: str, value: Any) -> None:
    (message,) = read_messages([{**TALK[1], key: value}], "messages")
    assert message == {**TALK[1], "weight": 0}
    (trained,) = read_messages([{**TALK[1], "weight": 1}], "messages")
    assert trained == TALK[1]


def test_a_weight_that_has_no_effect_is_noted() -> None:
    notes = Notes()
    asked = {**TALK[0], "weight": 1}
    assert list(read_messages([asked, TALK[1]], "messages", notes, 3)) == TALK
    read_messages([asked, TALK[1]], "messages", notes, 9)
    assert notes.sentences == (
        "'weight' has no effect on messages of the user: only answers are trained (2 times, first in row 3).",
    )
    other = Notes()
    read_messages([{**TALK[0], "mood": "glad"}, TALK[1]], "messages", other, 1)
    assert other.sentences == ("'mood' of messages is left to the chat template (row 1).",)
    quiet = Notes()
    read_messages([{**TALK[0], "weight": 0}, TALK[1]], "messages", quiet, 1)
    assert quiet.sentences == ()


SCHEMA = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("given", "tools"),
    [
        (None, None), ("", None), (" ", None), ("[]", None), ([], None), ("null", None),
        ([SCHEMA], [SCHEMA]), (json.dumps([SCHEMA]), [SCHEMA]), (SCHEMA, [SCHEMA]), ([json.dumps(SCHEMA)], [SCHEMA]),
        ([{**SCHEMA, "strict": None}], [SCHEMA]), ({name: [value] for name, value in SCHEMA.items()}, [SCHEMA]),
    ],
)  # fmt: skip
def test_tools_are_schemas_in_any_form_or_none(given: Any, tools: Any) -> None:
    assert read_tools(given) == tools


@pytest.mark.parametrize(("given", "message"), [("[{", "not valid JSON"), ("7", "a number"), ([7], "among its tools")])
def test_what_are_no_tools_is_refused(given: Any, message: str) -> None:
    with pytest.raises(RowError, match=rf"'tools' holds .*{message}"):
        read_tools(given)


@pytest.mark.parametrize(
    ("value", "flag"),
    [(True, True), ("True", True), ("yes", True), (1, True), ("1", True), (1.0, True), (False, False), ("no", False),
     (0, False), ("0.0", False), ("maybe", None), (2, None), (None, None), (-1, None)],
)  # fmt: skip
def test_true_and_false_are_read_as_tables_write_them(value: Any, flag: bool | None) -> None:
    assert read_flag(value) is flag
