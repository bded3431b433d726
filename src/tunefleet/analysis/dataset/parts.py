"""Reads a row of a known shape into parts that are the same for all shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tunefleet.analysis.dataset.messages import (
    Message,
    RowError,
    kind_of,
    looks_like_messages,
    parsed,
    read_flag,
    read_messages,
    read_tools,
)
from tunefleet.analysis.dataset.notes import Notes, filled, is_empty

SYSTEM: Final = ("system", "system_prompt")
TOOLS: Final = "tools"
HISTORY: Final = "history"
CHATML: Final = re.compile(r"<\|im_start\|>(?P<role>[^\n<]+?)\r?\n(?P<content>.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_HUMAN: Final = re.compile(r"\n\n(Human|Assistant):")


@dataclass(frozen=True, slots=True)
class Parts:
    """The content of a row, independent of its shape.

    Args:
        before: The messages before the answer; none for a plain text.
        answer: The answer, or the better one; in a chat the last answer, with any messages after it.
        worse: The worse answer of a preference pair.
        chat: Whether the row was a chat, whose messages are kept as they are.
        tools: Schemas of the tools that a chat may call.
        good: Whether the answer is labelled good, for answers with a label.
        prompted: Whether answers before the answer belong to the prompt, and are trained only if everything is.
    """

    before: tuple[Message, ...] = ()
    answer: tuple[Message, ...] = ()
    worse: tuple[Message, ...] | None = None
    text: str | None = None
    chat: bool = False
    tools: list[Any] | None = None
    good: bool | None = None
    prompted: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row while it is read."""

    values: Mapping[str, Any]
    separator: str
    notes: Notes
    number: int
    used: set[str] = field(default_factory=set)
    """Columns that were read in addition to those of the shape."""

    def text(self, column: str) -> str:
        """Return a text or number as text."""
        value = self.values.get(column)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value != value:  # noqa: PLR0124 - NaN
            self.require(column)
            raise RowError(f"{column!r} holds {kind_of(value)}, not a text")
        return str(value)

    def messages(self, column: str) -> tuple[Message, ...]:
        """Return a chat."""
        self.require(column)
        return read_messages(self.values[column], column, self.notes, self.number)

    def is_chat(self, column: str) -> bool:
        """Return whether a column holds a chat and not a text."""
        return looks_like_messages(self.values.get(column))

    def require(self, column: str) -> None:
        """Reject a row without the column."""
        if column not in self.values:
            raise RowError(f"it has no column {column!r}, but {', '.join(map(str, self.values)) or 'none'}")


def with_system(parts: Parts, row: Row, used: set[str]) -> Parts:
    """Prepend the system prompt of a separate column."""
    added = ""
    for name in SYSTEM:
        if name in used or not filled(row.values, name):
            continue
        used.add(name)
        system = row.text(name)
        own = next((message for message in parts.before if message["role"] == "system"), None)
        # A system message in the chat itself takes precedence over a column.
        if own is None:
            parts = replace(parts, before=({"role": "system", "content": system}, *parts.before))
            added = name
        elif own["content"] != system:
            why = f"{added!r} is" if added else "the chat has a system message of its own"
            row.notes.add(f"Column {name!r} is not used: {why}", row.number)
    return parts


def with_tools(parts: Parts, row: Row, used: set[str]) -> Parts:
    """Add the tools of a chat, which are in a separate column."""
    if TOOLS in used or TOOLS not in row.values or not parts.chat:
        return parts
    used.add(TOOLS)
    return replace(parts, tools=read_tools(row.values[TOOLS]))


def read_label(row: Row, label: str) -> bool:
    """Return whether an answer is labelled good.

    Raises:
        RowError: If the label is neither true nor false.
    """
    row.require(label)
    good = read_flag(row.values[label])
    if good is None:
        raise RowError(f"{label!r} holds {row.values[label]!r}, not true or false")
    return good


def _user(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def _assistant(text: str) -> tuple[Message, ...]:
    return ({"role": "assistant", "content": text},)


def _split(messages: tuple[Message, ...], column: str) -> Parts:
    """Split a chat before its last answer."""
    last = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=None)
    if last is None:
        raise RowError(f"{column!r} has no message of the assistant, so there is nothing to train")
    # Messages after the last answer stay with it, so that converting a chat to a chat loses none.
    return Parts(messages[:last], messages[last:], chat=True)


def _read_alpaca(names: Mapping[str, str], row: Row) -> Parts:
    return _after_history(row, _instruction(names, row), Parts(answer=_assistant(row.text(names["output"]))))


def _instruction(names: Mapping[str, str], row: Row) -> str:
    instruction = row.text(names.get("instruction") or names["prompt"])
    given = names.get("input")
    if given is None or not filled(row.values, given):
        return instruction
    return f"{instruction}{row.separator}{row.text(given)}" if instruction else row.text(given)


def _after_history(row: Row, prompt: str, parts: Parts) -> Parts:
    """Prepend a prompt to an answer, and to both the earlier turns of the column `history`."""
    if not filled(row.values, HISTORY):
        return replace(parts, before=_user(prompt))
    row.used.add(HISTORY)
    turns = row.values[HISTORY]
    if isinstance(turns, str):
        turns = parsed(turns, HISTORY)
    if is_empty(turns):
        return replace(parts, before=_user(prompt))
    if isinstance(turns, Mapping) or (isinstance(turns, list) and isinstance(turns[0], Mapping)):
        return replace(parts, before=(*read_messages(turns, HISTORY, row.notes, row.number), *_user(prompt)), chat=True)
    if not isinstance(turns, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in turns):
        raise RowError(f"{HISTORY!r} holds {kind_of(turns)}, not a list of pairs of a prompt and its answer")
    if not all(isinstance(text, str) for turn in turns for text in turn):
        raise RowError(f"{HISTORY!r} holds a turn that is not a pair of texts")
    earlier = tuple(message for asked, text in turns for message in (*_user(asked), *_assistant(text)))
    return replace(parts, before=(*earlier, *_user(prompt)), chat=True)


def _read_chat(names: Mapping[str, str], row: Row) -> Parts:
    column = names["messages"]
    parts = _split(row.messages(column), column)
    if parts.answer[-1]["role"] == "user":
        row.notes.add(f"{column!r} ends with a message of the user, which is not trained", row.number)
    return parts


def _read_chatml(names: Mapping[str, str], row: Row) -> Parts:
    column = names["text"]
    text = row.text(column)
    turns = [{"role": turn["role"], "content": turn["content"]} for turn in CHATML.finditer(text)]
    if not turns:
        raise RowError(f"{column!r} holds no ChatML, and the first row does")
    if CHATML.sub("", text).strip() or any("<|im_start|>" in turn["content"] for turn in turns):
        raise RowError(f"{column!r} has text outside of its ChatML turns, or a turn without an end")
    return _split(read_messages(turns, column), column)


def _read_pair(names: Mapping[str, str], row: Row) -> Parts:
    prompt, response = names["prompt"], names["response"]
    if row.is_chat(prompt):
        asked = row.messages(prompt)
        given = row.messages(response) if row.is_chat(response) else _assistant(row.text(response))
        return _without_repetition(asked, given, response)
    if row.is_chat(response):
        return _without_repetition(_user(row.text(prompt)), row.messages(response), response)
    return _after_history(row, row.text(prompt), Parts(answer=_assistant(row.text(response))))


def _without_repetition(asked: tuple[Message, ...], given: tuple[Message, ...], column: str) -> Parts:
    """Split a prompt and its answer, which in some datasets repeats the prompt, with a system message before it."""
    # Some datasets put a system message before the repeated prompt.
    for system in ((), given[:1] if given[0]["role"] == "system" else ()):
        repeated = (*system, *asked)
        if given[: len(repeated)] == repeated:
            asked, given = repeated, given[len(repeated) :]
            break
    if not any(message["role"] == "assistant" for message in given):
        raise RowError(f"{column!r} has no message of the assistant, so there is nothing to train")
    return Parts(asked, given, chat=True, prompted=True)


def _read_text(names: Mapping[str, str], row: Row) -> Parts:
    return Parts(text=row.text(names["text"]))


def _read_prompt(names: Mapping[str, str], row: Row) -> Parts:
    """Read a prompt, and the right answer if there is one: rewards compare with it, it is not trained."""
    prompt, reference = names["prompt"], names.get("reference")
    answer = () if reference is None else _assistant(row.text(reference))
    if row.is_chat(prompt):
        return Parts(row.messages(prompt), answer, chat=True)
    text = row.text(prompt)
    if not text:
        raise RowError(f"{prompt!r} holds an empty text")
    return Parts(_user(text), answer)


def _read_preference(names: Mapping[str, str], row: Row) -> Parts:
    chosen, rejected = names["chosen"], names["rejected"]
    before = _asked(names, row)
    if row.is_chat(chosen) or row.is_chat(rejected):
        good, bad = (
            row.messages(name) if row.is_chat(name) else _assistant(row.text(name)) for name in (chosen, rejected)
        )
        return _of_dialogues(row, before, good, bad)
    if not before:
        return _read_dialogues(names, row)
    good_text, bad_text = row.text(chosen), row.text(rejected)
    _differ(good_text, bad_text)
    parts = Parts(before, _assistant(good_text), _assistant(bad_text), chat=_is_asked_as_chat(names, row))
    alone = [message["role"] for message in before] == ["user"]
    return _after_history(row, before[0]["content"], parts) if alone and filled(row.values, HISTORY) else parts


def _is_asked_as_chat(names: Mapping[str, str], row: Row) -> bool:
    return "messages" in names or row.is_chat(names["prompt"])


def _asked(names: Mapping[str, str], row: Row) -> tuple[Message, ...]:
    """Read the prompt of a preference pair; without one, both answers are whole dialogues."""
    if "messages" in names:
        return row.messages(names["messages"])
    name = names.get("prompt")
    if name is None:
        return ()
    return row.messages(name) if row.is_chat(name) else _user(_instruction(names, row))


def _of_dialogues(row: Row, before: tuple[Message, ...], good: tuple[Message, ...], bad: tuple[Message, ...]) -> Parts:
    """Split two dialogues into their common part, which is the prompt, and the answers.

    Many datasets repeat the prompt in both answers, some with a system message that the prompt's column lacks.
    """
    _differ(good, bad)
    if good[0]["role"] == "assistant" and bad[0]["role"] == "assistant" and before:
        return Parts(before, good, bad, chat=True)
    shared = 0
    while shared < min(len(good), len(bad)) - 1 and good[shared] == bad[shared]:
        shared += 1
    # The prompt must not end with an answer: both answers may share their beginning.
    while shared and good[shared - 1]["role"] == "assistant":
        shared -= 1
    if not shared:
        raise RowError("its chosen and rejected answers do not begin with the same prompt")
    common = good[:shared]
    if before[-len(common) :] == common:
        common = before  # the answers repeat the last turns of a longer prompt
    elif before and not _repeats(common, before):
        row.notes.add("The prompt is taken from the beginning of the answers; the prompt's column differs", row.number)
    if before and common[0]["role"] != "system" and before[0]["role"] == "system":
        common = (before[0], *common)
    return Parts(common, good[shared:], bad[shared:], chat=True)


def _repeats(common: tuple[Message, ...], before: tuple[Message, ...]) -> bool:
    """Return whether dialogues begin with the messages of the prompt's column."""
    # White space is ignored: many datasets strip it in one of the two columns only.
    texts = {" ".join(message["content"].split()) for message in common}
    return all(" ".join(message["content"].split()) in texts for message in before if message["role"] != "system")


def _read_dialogues(names: Mapping[str, str], row: Row) -> Parts:
    chosen, rejected = names["chosen"], names["rejected"]
    good, bad = _dialogue(row.text(chosen), chosen), _dialogue(row.text(rejected), rejected)
    if good[:-1] != bad[:-1]:
        raise RowError(f"{chosen!r} and {rejected!r} are not two answers to the same dialogue")
    _differ(good, bad)
    return Parts(good[:-1], good[-1:], bad[-1:], chat=True)


def _differ(good: Any, bad: Any) -> None:
    if good == bad:
        raise SameAnswersError("its chosen and rejected answers are the same")


class SameAnswersError(RowError):
    """A pair of equal answers has no preference; a run skips and counts it."""


def _dialogue(text: str, column: str) -> tuple[Message, ...]:
    marks = list(_HUMAN.finditer(text))
    # Each turn ends where the next mark begins.
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    turns = tuple(
        {"role": "user" if mark[1] == "Human" else "assistant", "content": text[mark.end() : end].strip()}
        for mark, end in zip(marks, ends, strict=True)
    )
    if len(turns) < 2 or turns[-1]["role"] != "assistant" or not text[: marks[0].start()].strip() == "":
        raise RowError(f"it has no prompt, and {column!r} is not a dialogue of Human: and Assistant: turns either")
    return turns


_Reader = Callable[[Mapping[str, str], Row], Parts]
READERS: Final[dict[str, _Reader]] = {
    "alpaca": _read_alpaca,
    "sharegpt": _read_chat,
    "messages": _read_chat,
    "chatml": _read_chatml,
    "prompt_response": _read_pair,
    "preference": _read_preference,
    "hh": _read_preference,
    "prompt": _read_prompt,
    "text": _read_text,
}
