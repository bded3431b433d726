"""Recognises what rows are, and reads one into the parts that all shapes are made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tunefleet.dataset.values import RowError, kind_of
from tunefleet.errors import DataError

Message = dict[str, Any]
Kind = Literal["alpaca", "sharegpt", "messages", "chatml", "prompt_response", "preference", "hh", "text"]

_ROLES: Final = {"human": "user", "gpt": "assistant", "bing": "assistant", "chatgpt": "assistant", "bard": "assistant",
                 "model": "assistant", "ai": "assistant", "function_call": "assistant", "observation": "tool",
                 "function": "tool"}  # fmt: skip
_KNOWN_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_CHATS: Final = ("messages", "conversations", "conversation")
_PAIRS: Final = (("prompt", "response"), ("prompt", "completion"), ("question", "answer"), ("query", "response"),
                 ("query", "answer"), ("instruction", "response"), ("input", "output"))  # fmt: skip
_SYSTEM: Final = ("system", "system_prompt")
_ASKED: Final = ("prompt", "question", "instruction", "input")
"""Columns with the prompt of a preference pair, the first one that a row fills."""
_TURN: Final = re.compile(r"<\|im_start\|>(?P<role>\w+)\n(?P<content>.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_ASSISTANT: Final = "\n\nAssistant:"
_HUMAN: Final = re.compile(r"\n\n(Human|Assistant):")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a row says, whatever its shape.

    Args:
        before: The turns before the answer; none of a plain text.
        answer: The answer, or the better one; of a chat the last one, with the turns behind it if there are any.
        worse: The worse answer, of a preference.
        text: A plain text.
        chat: Whether the row was a chat, whose turns are kept as such.
    """

    before: tuple[Message, ...] = ()
    answer: tuple[Message, ...] = ()
    worse: tuple[Message, ...] | None = None
    text: str | None = None
    chat: bool = False


@dataclass(frozen=True, slots=True)
class Recognised:
    """A shape, and the columns that hold it.

    Args:
        kind: Which.
        columns: Their names in the first row, in the order that the kind has them; which of the columns that not every
            row has are there is looked up in each.
    """

    kind: Kind
    columns: tuple[str, ...]
    names: Mapping[Kind, str] = field(default_factory=lambda: _NAMES, repr=False)

    @property
    def sentence(self) -> str:
        """What was recognised, in words."""
        return f"{self.names[self.kind]} ({', '.join(self.columns)})"

    def read(self, values: Mapping[str, Any], separator: str) -> Parts:
        """Return the parts of a row.

        Args:
            values: The row.
            separator: Between the instruction and the input of Alpaca rows.

        Raises:
            RowError: If it does not fit.
        """
        parts = _READERS[self.kind](self, values, separator)
        system = next((said for name in _SYSTEM if isinstance(said := values.get(name), str) and said), None)
        if system is not None and not any(message["role"] == "system" for message in parts.before):
            return Parts(({"role": "system", "content": system}, *parts.before), parts.answer, parts.worse,
                         parts.text, parts.chat)  # fmt: skip
        return parts


_NAMES: Final[dict[Kind, str]] = {
    "alpaca": "Alpaca rows",
    "sharegpt": "ShareGPT conversations",
    "messages": "chats of messages",
    "chatml": "ChatML texts",
    "prompt_response": "prompts and responses",
    "preference": "preference pairs",
    "hh": "preference pairs of whole dialogues",
    "text": "plain texts",
}


def recognise(values: Mapping[str, Any], wanted: str, origin: str) -> Recognised:
    """Say what rows are, by the columns of the first one.

    Args:
        values: The first row.
        wanted: `auto`, or what the spec says that they are.
        origin: What messages call them.

    Raises:
        DataError: If it is none of the shapes, or not the one that the spec says.
    """
    found = next(filter(None, (each(values) for each in _LOOKS)), None)
    if wanted != "auto":
        found = next((shape for each in _LOOKS if (shape := each(values)) and shape.kind in _SAID[wanted]), None)
    if found is None:
        what = "none of the shapes that are recognised" if wanted == "auto" else f"not {wanted}"
        raise DataError(
            f"{origin} is {what}: its first row has the columns {', '.join(map(str, values)) or 'none'}.",
            hint="Give the columns a usual name by a step map with rename, such as prompt and response, or messages.",
        )
    return found


_SAID: Final = {
    "alpaca": {"alpaca"},
    "sharegpt": {"sharegpt"},
    "messages": {"messages", "chatml"},
    "prompt_response": {"prompt_response"},
    "preference": {"preference", "hh"},
    "text": {"text", "chatml"},
}


def _preference(values: Mapping[str, Any]) -> Recognised | None:
    if not {"chosen", "rejected"} <= values.keys():
        return None
    prompt = _asked(values)
    if prompt is None and isinstance(values["chosen"], str):
        return Recognised("hh", ("chosen", "rejected"))
    return Recognised("preference", ("chosen", "rejected", *([prompt] if prompt else [])))


def _asked(values: Mapping[str, Any]) -> str | None:
    return next((name for name in _ASKED if values.get(name)), None)


def _chat(values: Mapping[str, Any]) -> Recognised | None:
    for name in _CHATS:
        turns = values.get(name)
        if isinstance(turns, list) and turns and isinstance(turns[0], dict):
            return Recognised("sharegpt" if "from" in turns[0] else "messages", (name,))
    return None


def _alpaca(values: Mapping[str, Any]) -> Recognised | None:
    if not {"instruction", "output"} <= values.keys():
        return None
    return Recognised("alpaca", ("instruction", *(["input"] if "input" in values else []), "output"))


def _pair(values: Mapping[str, Any]) -> Recognised | None:
    found = next((pair for pair in _PAIRS if set(pair) <= values.keys()), None)
    return None if found is None else Recognised("prompt_response", found)


def _text(values: Mapping[str, Any]) -> Recognised | None:
    text = values.get("text")
    if not isinstance(text, str):
        return None
    return Recognised("chatml" if _TURN.match(text.lstrip()) else "text", ("text",))


_LOOKS: Final = (_preference, _chat, _alpaca, _pair, _text)


def _of(values: Mapping[str, Any], column: str) -> str:
    value = values.get(column)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError(f"{column!r} holds {kind_of(value)}, not a text")
    return str(value)


def _message(turn: Any, column: str) -> Message:
    if isinstance(turn, dict) and "role" not in turn and "from" in turn:
        turn = {**{k: v for k, v in turn.items() if k not in {"from", "value"}}, "role": turn["from"],
                "content": turn.get("value")}  # fmt: skip
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        raise RowError(f"{column!r} holds {kind_of(turn)} among its messages, and a message has role and content")
    role = _ROLES.get(turn["role"].lower(), turn["role"].lower())
    if role not in _KNOWN_ROLES:
        raise RowError(f"{column!r} has a message of {turn['role']!r}, which is no role that is known")
    if turn.get("content") is None and not turn.get("tool_calls"):
        raise RowError(f"{column!r} has a message of the {role} without content")
    return {**{k: v for k, v in turn.items() if v is not None}, "role": role, "content": turn.get("content") or ""}


def _messages(value: Any, column: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise RowError(f"{column!r} holds {kind_of(value)}, not a list of messages")
    return tuple(_message(turn, column) for turn in value)


def _user(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def _assistant(text: str) -> tuple[Message, ...]:
    return ({"role": "assistant", "content": text},)


def _split(messages: tuple[Message, ...], column: str) -> Parts:
    """Part a chat before its last answer."""
    last = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=None)
    if last is None:
        raise RowError(f"{column!r} has no message of the assistant")
    # What is said after the last answer stays with it: a chat that becomes a chat loses no turn.
    return Parts(messages[:last], messages[last:], chat=True)


def _read_alpaca(shape: Recognised, values: Mapping[str, Any], separator: str) -> Parts:
    del shape
    instruction = _of(values, "instruction")
    prompt = f"{instruction}{separator}{_of(values, 'input')}" if values.get("input") else instruction
    return Parts(_user(prompt), _assistant(_of(values, "output")))


def _read_chat(shape: Recognised, values: Mapping[str, Any], separator: str) -> Parts:
    del separator
    (column,) = shape.columns
    return _split(_messages(values.get(column), column), column)


def _read_chatml(shape: Recognised, values: Mapping[str, Any], separator: str) -> Parts:
    del shape, separator
    turns = [{"role": turn["role"], "content": turn["content"]} for turn in _TURN.finditer(_of(values, "text"))]
    return _split(_messages(turns, "text"), "text")


def _read_pair(shape: Recognised, values: Mapping[str, Any], separator: str) -> Parts:
    del separator
    prompt, response = shape.columns
    if isinstance(values.get(prompt), list):
        before = _messages(values[prompt], prompt)
        answer = values.get(response)
        given = _messages(answer, response) if isinstance(answer, list) else _assistant(_of(values, response))
        return Parts(before, given, chat=True)
    return Parts(_user(_of(values, prompt)), _assistant(_of(values, response)))


def _read_text(shape: Recognised, values: Mapping[str, Any], separator: str) -> Parts:
    del shape, separator
    return Parts(text=_of(values, "text"))


def _read_preference(shape: Recognised, values: Mapping[str, Any], separator: str) -> Parts:
    del shape, separator
    prompt = _asked(values)
    if isinstance(values.get("chosen"), list):
        good, bad = _messages(values["chosen"], "chosen"), _messages(values.get("rejected"), "rejected")
        before = _before(values, prompt)
        # Many datasets repeat the question in both answers.
        shared = next((n for n, pair in enumerate(zip(good, bad, strict=False)) if pair[0] != pair[1]), None)
        if shared is None:
            raise RowError("'chosen' and 'rejected' are the same")
        if shared and good[shared - 1]["role"] != "assistant":
            before = good[:shared]
        else:
            shared = 0
        if not before:
            raise RowError("it has no prompt, neither in a column nor at the beginning of both answers")
        return Parts(before, good[shared:], bad[shared:], chat=True)
    if prompt is None:
        return _read_dialogues(values)
    good_text, bad_text = _of(values, "chosen"), _of(values, "rejected")
    if good_text == bad_text:
        raise RowError("'chosen' and 'rejected' are the same")
    return Parts(_before(values, prompt), _assistant(good_text), _assistant(bad_text))


def _before(values: Mapping[str, Any], prompt: str | None) -> tuple[Message, ...]:
    if prompt is None:
        return ()
    value = values.get(prompt)
    return _messages(value, prompt) if isinstance(value, list) else _user(_of(values, prompt))


def _read_dialogues(values: Mapping[str, Any]) -> Parts:
    good, bad = _dialogue(_of(values, "chosen"), "chosen"), _dialogue(_of(values, "rejected"), "rejected")
    if good[:-1] != bad[:-1]:
        raise RowError("'chosen' and 'rejected' are not two answers to the same dialogue")
    if good == bad:
        raise RowError("'chosen' and 'rejected' are the same")
    return Parts(good[:-1], good[-1:], bad[-1:], chat=True)


def _dialogue(text: str, column: str) -> tuple[Message, ...]:
    marks = list(_HUMAN.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    turns = tuple(
        {"role": "user" if mark[1] == "Human" else "assistant", "content": text[mark.end() : end].strip()}
        for mark, end in zip(marks, ends, strict=True)
    )
    if len(turns) < 2 or turns[-1]["role"] != "assistant" or not text[: marks[0].start()].strip() == "":
        raise RowError(f"{column!r} has no prompt, and is no dialogue of Human: and Assistant: either")
    return turns


_Reader = Callable[[Recognised, Mapping[str, Any], str], Parts]
_READERS: Final[dict[Kind, _Reader]] = {
    "alpaca": _read_alpaca,
    "sharegpt": _read_chat,
    "messages": _read_chat,
    "chatml": _read_chatml,
    "prompt_response": _read_pair,
    "preference": _read_preference,
    "hh": _read_preference,
    "text": _read_text,
}
