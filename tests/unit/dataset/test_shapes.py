"""Rows of every common shape are recognized and read into the same parts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tunefleet.analysis.dataset.messages import RowError
from tunefleet.analysis.dataset.notes import Notes
from tunefleet.analysis.dataset.parts import Parts, SameAnswersError
from tunefleet.analysis.dataset.shapes import JUDGED, PREFERENCES, SUPERVISED, recognize
from tunefleet.errors import DataError


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
ASK = (user("Hi"),)
YO, NO = (assistant("Yo"),), (assistant("No"),)
PAIR = Parts(ASK, YO, chat=True, prompted=True)


def read(row: dict[str, Any], kinds: Any = (), notes: Notes | None = None) -> Parts:
    return recognize(row, "auto", "rows", kinds).read(row, "\n", notes, 1)


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({"text": "Once."}, Parts(text="Once.")),
        ({"prompt": "Hi", "response": "Yo"}, Parts(ASK, YO)),
        ({"question": "Hi", "answer": 7}, Parts(ASK, (assistant("7"),))),
        ({"prompt": "Hi", "completion": "Yo", "system": "Be brief."}, Parts((SYSTEM, *ASK), YO)),
        ({"instruction": "Add", "input": "1", "output": "2"}, Parts((user("Add\n1"),), (assistant("2"),))),
        ({"instruction": "Hi", "input": "", "output": "Yo"}, Parts(ASK, YO)),
        ({"instruction": "Add", "context": "1", "response": "2"}, Parts((user("Add\n1"),), (assistant("2"),))),
        ({"instruction": "Hi", "response": "Yo"}, Parts(ASK, YO)),
        (
            {"instruction": "Hi", "input": "", "output": "Yo", "history": [["A", "B"]]},
            Parts((user("A"), assistant("B"), *ASK), YO, chat=True),
        ),
        ({"messages": [*ASK, *YO]}, Parts(ASK, YO, chat=True)),
        ({"messages": json.dumps([*ASK, *YO])}, Parts(ASK, YO, chat=True)),
        (
            {"system": "Be brief.", "conversation": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]},
            Parts((SYSTEM, *ASK), YO, chat=True),
        ),
        ({"prompt": [*ASK], "completion": [*YO]}, PAIR),
        ({"prompt": [*ASK], "completion": [*ASK, *YO]}, PAIR),
        ({"prompt": "Hi", "completion": [*ASK, *YO]}, PAIR),
        ({"prompt": [*ASK], "completion": "Yo"}, PAIR),
        ({"prompt": "Hi", "completion": [*YO]}, PAIR),
        ({"prompt": "Hi", "completion": json.dumps([*YO])}, PAIR),
        (
            {"prompt": [user("A"), assistant("B"), *ASK], "completion": [*YO]},
            Parts((user("A"), assistant("B"), *ASK), YO, chat=True, prompted=True),
        ),
        (
            {"prompt": [*ASK], "completion": [SYSTEM, *ASK, *YO]},
            Parts((SYSTEM, *ASK), YO, chat=True, prompted=True),
        ),
        ({"messages": None, "prompt": "Hi", "response": "Yo"}, Parts(ASK, YO)),
        (
            {"prompt": "Hi", "response": "Yo", "history": '[["A", "B"]]'},
            Parts((user("A"), assistant("B"), *ASK), YO, chat=True),
        ),
        ({"prompt": "Hi", "response": "Yo", "history": "[]"}, Parts(ASK, YO)),
        (
            {"prompt": "Hi", "response": "Yo", "history": [user("A"), assistant("B")]},
            Parts((user("A"), assistant("B"), *ASK), YO, chat=True),
        ),
        ({"messages": [*ASK, *YO], "chosen": [*YO], "rejected": [*NO], "prompt": "Hi"}, Parts(ASK, YO, chat=True)),
        (
            {"text": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>"},
            Parts(ASK, YO, chat=True),
        ),
    ],
)  # fmt: skip
def test_what_a_supervised_run_trains_on(row: dict[str, Any], parts: Parts) -> None:
    assert read(row, SUPERVISED) == parts


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({"prompt": "Hi", "chosen": "Yo", "rejected": "No"}, Parts(ASK, YO, NO)),
        ({"question": "Hi", "chosen": "Yo", "rejected": "No", "system": "Be brief."}, Parts((SYSTEM, *ASK), YO, NO)),
        (
            {"instruction": "Add", "input": "1", "chosen": "Yo", "rejected": "No"},
            Parts((user("Add\n1"),), YO, NO),
        ),
        ({"prompt": [*ASK], "chosen": [*YO], "rejected": [*NO]}, Parts(ASK, YO, NO, chat=True)),
        ({"prompt": [*ASK], "chosen": [*ASK, *YO], "rejected": [*ASK, *NO]}, Parts(ASK, YO, NO, chat=True)),
        ({"prompt": "Hi", "chosen": [*ASK, *YO], "rejected": [*ASK, *NO]}, Parts(ASK, YO, NO, chat=True)),
        ({"chosen": [*ASK, *YO], "rejected": [*ASK, *NO]}, Parts(ASK, YO, NO, chat=True)),
        (
            {"chosen": json.dumps([*ASK, *YO]), "rejected": json.dumps([*ASK, *NO]), "score_chosen": None},
            Parts(ASK, YO, NO, chat=True),
        ),
        ({"prompt": "Hi", "chosen": [*YO], "rejected": [*NO]}, Parts(ASK, YO, NO, chat=True)),
        (
            {"prompt": [user("A"), assistant("B"), *ASK], "chosen": [*ASK, *YO], "rejected": [*ASK, *NO]},
            Parts((user("A"), assistant("B"), *ASK), YO, NO, chat=True),
        ),
        ({"prompt": [*ASK], "chosen": "Yo", "rejected": "No"}, Parts(ASK, YO, NO, chat=True)),
        (
            {
                "conversations": [{"from": "human", "value": "Hi"}],
                "chosen": {"from": "gpt", "value": "Yo"},
                "rejected": {"from": "gpt", "value": "No"},
            },
            Parts(ASK, YO, NO, chat=True),
        ),
        (
            {"prompt": [SYSTEM, *ASK], "chosen": [*ASK, *YO], "rejected": [*ASK, *NO]},
            Parts((SYSTEM, *ASK), YO, NO, chat=True),
        ),
        (
            {"chosen": "\n\nHuman: Hi\n\nAssistant: Yo", "rejected": "\n\nHuman: Hi\n\nAssistant: No"},
            Parts(ASK, YO, NO, chat=True),
        ),
    ],
)  # fmt: skip
def test_what_a_run_on_pairs_trains_on(row: dict[str, Any], parts: Parts) -> None:
    assert read(row, PREFERENCES) == parts


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({"prompt": "Hi", "completion": "Yo", "label": True}, Parts(ASK, YO, good=True)),
        ({"prompt": "Hi", "completion": "Yo", "label": "False"}, Parts(ASK, YO, good=False)),
        ({"instruction": "Hi", "input": "", "output": "Yo", "kto_tag": 0}, Parts(ASK, YO, good=False)),
        ({"messages": [*ASK, *YO], "label": "true"}, Parts(ASK, YO, chat=True, good=True)),
        ({"prompt": [*ASK], "completion": [*YO], "label": 1}, Parts(ASK, YO, chat=True, prompted=True, good=True)),
        ({"prompt": "Hi", "chosen": "Yo", "rejected": "No"}, Parts(ASK, YO, NO)),
    ],
)
def test_what_a_run_on_judged_answers_trains_on(row: dict[str, Any], parts: Parts) -> None:
    assert read(row, JUDGED) == parts


def test_columns_that_nothing_reads_are_noted_once_with_their_rows() -> None:
    notes = Notes()
    first = {"prompt": "Hi", "response": "Yo", "id": 1, "source": None}
    shape = recognize(first, "auto", "rows", SUPERVISED)
    for number in (1, 2):
        shape.read({**first, "url": "" if number == 1 else "x"}, "\n", notes, number)
    assert notes.sentences == ("Columns that are not used: 'id' (2 times, first in row 1), 'url' (row 2).",)


def test_a_system_column_is_not_used_where_the_chat_has_a_system_message() -> None:
    notes = Notes()
    row = {"system": "Be long.", "messages": [SYSTEM, *ASK, *YO]}
    assert read(row, SUPERVISED, notes).before == (SYSTEM, *ASK)
    assert "Column 'system' is not used" in notes.sentences[0]
    same = Notes()
    read({**row, "system": "Be brief."}, SUPERVISED, same)
    assert same.sentences == ()
    both = Notes()
    read({"prompt": "Hi", "response": "Yo", "system": "Be brief.", "system_prompt": "Be long."}, SUPERVISED, both)
    assert both.sentences == ("Column 'system_prompt' is not used: 'system' is (row 1).",)


@pytest.mark.parametrize(
    ("row", "kinds"),
    [
        ({"prompt": [*ASK], "completion": [*YO]}, SUPERVISED),
        ({"prompt": [SYSTEM, *ASK], "chosen": "Yo", "rejected": "No"}, PREFERENCES),
    ],
)
def test_earlier_turns_beside_a_chat_are_noted(row: dict[str, Any], kinds: Any) -> None:
    notes = Notes()
    read({**row, "history": [["A", "B"]]}, kinds, notes)
    assert notes.sentences == ("Columns that are not used: 'history' (row 1).",)


def test_tools_are_read_of_chats_and_noted_elsewhere() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert read({"messages": [*ASK, *YO], "tools": json.dumps(tools)}, SUPERVISED).tools == tools
    assert read({"messages": [*ASK, *YO], "tools": ""}, SUPERVISED).tools is None
    notes = Notes()
    read({"prompt": "Hi", "response": "Yo", "tools": tools}, SUPERVISED, notes)
    assert "'tools'" in notes.sentences[0]


@pytest.mark.parametrize(
    ("row", "kinds", "error", "message"),
    [
        ({"x": 1}, SUPERVISED, DataError, r"an unknown shape \(columns: x\)"),
        ({"chosen": "a", "rejected": "b", "prompt": "c"}, SUPERVISED, DataError, "preference pairs.*dpo"),
        ({"prompt": "a", "response": "b"}, PREFERENCES, DataError, "prompts and responses.*lora_sft"),
        ({"prompt": "a", "completion": "b", "label": "maybe"}, JUDGED, DataError, "prompts and responses"),
        ({"prompt": "a", "response": None}, SUPERVISED, RowError, r"'response' holds nothing \(null\), not a text"),
        ({"messages": []}, SUPERVISED, RowError, "empty conversation"),
        ({"prompt": "a", "response": float("nan")}, SUPERVISED, RowError, "'response' holds a number, not a text"),
        (
            {"text": "<|im_start|>user\na<|im_end|>\nlost\n<|im_start|>assistant\nb<|im_end|>"},
            SUPERVISED, RowError, "text outside of its ChatML turns",
        ),
        (
            {"text": "<|im_start|>assistant\nb\n<|im_start|>user\na<|im_end|>"},
            SUPERVISED, RowError, "a turn without an end",
        ),
        ({"messages": [*ASK]}, SUPERVISED, RowError, "no message of the assistant"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, PREFERENCES, SameAnswersError, "the same"),
        ({"chosen": [user("a"), *YO], "rejected": [user("b"), *NO]}, PREFERENCES, RowError, "same prompt"),
        ({"prompt": "a", "response": "b", "history": "c"}, SUPERVISED, RowError, "'history' holds a text"),
        ({"prompt": "a", "response": "b", "history": [["q", None]]}, SUPERVISED, RowError, "not a pair of texts"),
        ({"prompt": "a", "completion": "b", "kto_tag": "maybe"}, JUDGED, RowError, "'kto_tag' holds 'maybe'"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_on_is_refused(
    row: dict[str, Any], kinds: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(row, kinds)


def test_a_part_that_only_later_rows_have_is_read_of_judged_answers_too() -> None:
    first = {"instruction": "Hi", "output": "Yo", "kto_tag": True}
    shape = recognize(first, "auto", "rows", JUDGED)
    notes = Notes()
    assert shape.read({**first, "input": "there", "history": [["A", "B"]]}, "\n", notes, 2).before[-1] == user(
        "Hi\nthere"
    )
    assert notes.sentences == ()


@pytest.mark.parametrize(("messages", "noted"), [([*ASK, *YO], False), ([*ASK, *YO, *ASK], True), ([*YO, *ASK], True)])
def test_a_turn_of_the_user_after_the_last_answer_is_noted(messages: list[dict[str, Any]], noted: bool) -> None:
    notes = Notes()
    read({"messages": messages}, SUPERVISED, notes)
    assert notes.sentences == (("'messages' ends with a message of the user, which is not trained (row 1).",) * noted)
