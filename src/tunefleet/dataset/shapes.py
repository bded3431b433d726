"""Recognizes the shape of rows by their columns, and reads a row of any shape into the same parts.

The only reader of rows: data tasks, the page, previews, and every kind of training use it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from tunefleet.dataset.messages import Message, looks_like_messages, read_flag, read_messages, read_tools
from tunefleet.dataset.notes import Notes, filled
from tunefleet.dataset.values import RowError, kind_of
from tunefleet.errors import DataError

Kind = Literal["alpaca", "sharegpt", "messages", "chatml", "prompt_response", "preference", "hh", "judged", "text"]

SUPERVISED: Final[frozenset[Kind]] = frozenset({"alpaca", "sharegpt", "messages", "chatml", "prompt_response", "text"})
"""What a supervised run trains on."""
PREFERENCES: Final[frozenset[Kind]] = frozenset({"preference", "hh"})
"""What a run on pairs of answers trains on."""
JUDGED: Final[frozenset[Kind]] = PREFERENCES | {"judged"}
"""What a run on answers that are good or bad trains on; a pair counts as one of each."""

_CHATS: Final = ("messages", "conversations", "conversation")
_PROMPTS: Final = ("prompt", "question", "query", "instruction", "input")
_RESPONSES: Final = ("response", "completion", "answer", "output")
_INPUTS: Final = ("input", "context")
_LABELS: Final = ("kto_tag", "label")
_SYSTEM: Final = ("system", "system_prompt")
_TOOLS: Final = "tools"
_HISTORY: Final = "history"
SIDE_COLUMNS: Final = (*_SYSTEM, _TOOLS, _HISTORY)
"""Columns that are read in addition to those of the shape, in every row that has them."""
_TURN: Final = re.compile(r"<\|im_start\|>(?P<role>\w+)\n(?P<content>.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_HUMAN: Final = re.compile(r"\n\n(Human|Assistant):")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a row says, whatever its shape.

    Args:
        before: The messages before the answer; none of a plain text.
        answer: The answer, or the better one; of a chat its last answer, with the messages behind it if there are any.
        worse: The worse answer, of a preference.
        text: A plain text.
        chat: Whether the row was a chat, whose messages are kept as such.
        tools: Schemas of the tools that a chat may call.
        good: Whether the answer is good, of an answer that was judged.
    """

    before: tuple[Message, ...] = ()
    answer: tuple[Message, ...] = ()
    worse: tuple[Message, ...] | None = None
    text: str | None = None
    chat: bool = False
    tools: list[Any] | None = None
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that is being read."""

    values: Mapping[str, Any]
    separator: str
    notes: Notes
    number: int

    def text(self, column: str) -> str:
        value = self.values.get(column)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self.require(column)
            raise RowError(f"{column!r} holds {kind_of(value)}, not a text")
        return str(value)

    def messages(self, column: str) -> tuple[Message, ...]:
        self.require(column)
        return read_messages(self.values[column], column, self.notes, self.number)

    def is_chat(self, column: str) -> bool:
        return looks_like_messages(self.values.get(column))

    def require(self, column: str) -> None:
        if column not in self.values:
            raise RowError(f"it has no column {column!r}, but {', '.join(map(str, self.values)) or 'none'}")


@dataclass(frozen=True, slots=True)
class Recognized:
    """A shape, and the columns that hold it.

    Args:
        kind: Which.
        names: What a column holds → its name.
        base: Of answers that were judged: the shape without the label.
        by_row: Whether columns that only some rows have (a second part of the prompt, another column with it) are
            looked up in each row; not if the user named the columns.
    """

    kind: Kind
    names: Mapping[str, str]
    base: Kind | None = None
    by_row: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, in the order that the kind has them."""
        return tuple(self.names.values())

    @property
    def sentence(self) -> str:
        """What was recognized, in words."""
        return f"{_TITLES[self.kind]} ({', '.join(self.columns)})"

    def read(self, values: Mapping[str, Any], separator: str, notes: Notes | None = None, number: int = 0) -> Parts:
        """Return the parts of a row.

        Args:
            values: The row.
            separator: Between the instruction and the input of Alpaca rows.
            notes: Gets what the row has and nothing reads.
            number: Of the row, from 1, for the notes.

        Raises:
            RowError: If it does not fit.
        """
        row = _Row(values, separator, notes or Notes(), number)
        shape = self._of_row(values)
        parts = _READERS[shape.base or shape.kind](shape, row)
        if shape.base is not None:
            parts = replace(parts, good=_good(row, shape.names["label"]))
        used = {*shape.names.values()}
        if parts.text is None:
            parts = _with_tools(_with_system(parts, row, used), row, used)
        for column, value in values.items():
            if column not in used and value not in (None, "", [], {}):
                row.notes.ignore_column(column, number)
        return parts

    def _of_row(self, values: Mapping[str, Any]) -> Recognized:
        look = _BY_ROW.get(self.kind) if self.by_row else None
        return (look(values) if look is not None else None) or self


_TITLES: Final[dict[Kind, str]] = {
    "alpaca": "Alpaca rows",
    "sharegpt": "ShareGPT conversations",
    "messages": "chats of messages",
    "chatml": "ChatML texts",
    "prompt_response": "prompts and responses",
    "preference": "preference pairs",
    "hh": "preference pairs of whole dialogues",
    "judged": "answers with a label",
    "text": "plain texts",
}


def recognize(values: Mapping[str, Any], wanted: str, origin: str, kinds: Collection[Kind] = ()) -> Recognized:
    """Say what rows are, by the columns of the first one.

    Args:
        values: The first row.
        wanted: `auto`, or what the spec says that they are.
        origin: What messages call them.
        kinds: The shapes that can be used; all by default.

    Raises:
        DataError: If it is none of the shapes, or none that can be used.
    """
    if wanted != "auto":
        kinds = _SAID[wanted]
    found = [shape for look in _LOOKS if (shape := look(values)) is not None]
    usable = next((shape for shape in found if not kinds or shape.kind in kinds), None)
    if usable is not None:
        return usable
    columns = f"columns: {', '.join(map(str, values)) or 'none'}"
    if found and wanted == "auto":
        raise DataError(f"{origin} has {found[0].sentence}; {_elsewhere(found[0].kind)}.", hint=f"It has {columns}.")
    what = "no shape that is recognized" if wanted == "auto" else f"no rows of the shape {wanted}"
    raise DataError(
        f"{origin} has {what} ({columns}).",
        hint="Name the columns in `data`, such as prompt_column and response_column, messages_field or text_field.",
    )


def _elsewhere(kind: Kind) -> str:
    """Say which runs use a shape."""
    if kind in PREFERENCES:
        return "dpo, orpo, kto and reward train on them"
    return "kto trains on them" if kind == "judged" else "sft and lora_sft train on them"


_SAID: Final[dict[str, frozenset[Kind]]] = {
    "alpaca": frozenset({"alpaca"}),
    "sharegpt": frozenset({"sharegpt"}),
    "messages": frozenset({"messages", "chatml"}),
    "prompt_response": frozenset({"prompt_response"}),
    "preference": PREFERENCES,
    "text": frozenset({"text", "chatml"}),
}


def _preference(values: Mapping[str, Any]) -> Recognized | None:
    if not {"chosen", "rejected"} <= values.keys():
        return None
    return replace(preference(values, {"chosen": "chosen", "rejected": "rejected"}), by_row=True)


def preference(values: Mapping[str, Any], names: Mapping[str, str]) -> Recognized:
    """Return the shape of preference pairs.

    Args:
        values: The first row.
        names: Columns of `chosen` and `rejected`, and of `prompt` if it is known.
    """
    found = dict(names)
    if "prompt" not in found:
        prompt = _filled_first(values, _PROMPTS)
        chat = _filled_first(values, _CHATS)
        if prompt is not None:
            found["prompt"] = prompt
        elif chat is not None:
            found["messages"] = chat
        elif isinstance(values.get(found["chosen"]), str) and not looks_like_messages(values[found["chosen"]]):
            return Recognized("hh", found)
    if found.get("prompt") == "instruction" and "input" in values:
        found["input"] = "input"
    return Recognized("preference", found)


def _judged(values: Mapping[str, Any]) -> Recognized | None:
    label = next((name for name in _LABELS if name in values), None)
    base = next((shape for look in (_chat, _alpaca, _pair) if (shape := look(values)) is not None), None)
    if label is None or base is None or (label == "label" and read_flag(values[label]) is None):
        return None
    return judged(base, label)


def judged(base: Recognized, label: str) -> Recognized:
    """Return the shape of answers with a label.

    Args:
        base: The shape without it.
        label: Its column.
    """
    return Recognized("judged", {**base.names, "label": label}, base.kind)


def judged_pair(prompt: str, response: str, label: str) -> Recognized:
    """Return the shape of prompts and answers with a label, in columns of these names."""
    return judged(Recognized("prompt_response", {"prompt": prompt, "response": response}), label)


def _chat(values: Mapping[str, Any]) -> Recognized | None:
    there = [name for name in _CHATS if name in values and _may_be_chat(values[name])]
    name = next((name for name in there if filled(values, name)), there[0] if there else None)
    if name is None:
        return None
    turns = values[name]
    first = turns[0] if isinstance(turns, list) and turns else turns
    sharegpt = "from" in first if isinstance(first, Mapping) else isinstance(first, str) and '"from"' in first
    return Recognized("sharegpt" if sharegpt else "messages", {"messages": name})


def _may_be_chat(value: Any) -> bool:
    return value is None or isinstance(value, list | Mapping) or (isinstance(value, str) and value.lstrip()[:1] in "[{")


def _alpaca(values: Mapping[str, Any]) -> Recognized | None:
    output = next((name for name in ("output", "response") if name in values), None)
    given = _filled_first(values, _INPUTS) or next((name for name in _INPUTS if name in values), None)
    if "instruction" not in values or output is None:
        return None
    if output == "response" and given is None:
        return None  # an ordinary pair
    names = {"instruction": "instruction", **({"input": given} if given else {}), "output": output}
    return Recognized("alpaca", names, by_row=True)


def _pair(values: Mapping[str, Any]) -> Recognized | None:
    prompt = next((name for name in _PROMPTS if name in values), None)
    response = next((name for name in _RESPONSES if name in values), None)
    if prompt is None or response is None:
        return None
    return Recognized("prompt_response", {"prompt": prompt, "response": response})


def _text(values: Mapping[str, Any]) -> Recognized | None:
    if "text" not in values:
        return None
    text = values["text"]
    chatml = isinstance(text, str) and _TURN.match(text.lstrip()) is not None
    return Recognized("chatml" if chatml else "text", {"text": "text"})


_BY_ROW: Final[dict[Kind, Callable[[Mapping[str, Any]], Recognized | None]]] = {
    "alpaca": _alpaca,
    "preference": _preference,
    "hh": _preference,
}
_LOOKS: Final = (_preference, _judged, _chat, _alpaca, _pair, _text)


def _filled_first(values: Mapping[str, Any], names: Collection[str]) -> str | None:
    return next((name for name in names if filled(values, name)), None)


def _with_system(parts: Parts, row: _Row, used: set[str]) -> Parts:
    """Put a system prompt of a column of its own in front."""
    for name in _SYSTEM:
        if name in used or not filled(row.values, name):
            continue
        used.add(name)
        system = row.text(name)
        own = next((message for message in parts.before if message["role"] == "system"), None)
        if own is None:
            parts = replace(parts, before=({"role": "system", "content": system}, *parts.before))
        elif own["content"] != system:
            row.notes.add(f"Column {name!r} is not used: the chat has a system message of its own", row.number)
    return parts


def _with_tools(parts: Parts, row: _Row, used: set[str]) -> Parts:
    if _TOOLS in used or _TOOLS not in row.values or not parts.chat:
        return parts
    used.add(_TOOLS)
    return replace(parts, tools=read_tools(row.values[_TOOLS]))


def _good(row: _Row, label: str) -> bool:
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
    """Part a chat before its last answer."""
    last = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=None)
    if last is None:
        raise RowError(f"{column!r} has no message of the assistant, so nothing could be trained")
    # What is said after the last answer stays with it: a chat that becomes a chat loses no message.
    return Parts(messages[:last], messages[last:], chat=True)


def _read_alpaca(shape: Recognized, row: _Row) -> Parts:
    return _after_history(row, _instruction(shape, row), Parts(answer=_assistant(row.text(shape.names["output"]))))


def _instruction(shape: Recognized, row: _Row) -> str:
    instruction = row.text(shape.names.get("instruction") or shape.names["prompt"])
    given = shape.names.get("input")
    if given is None or not filled(row.values, given):
        return instruction
    return f"{instruction}{row.separator}{row.text(given)}" if instruction else row.text(given)


def _after_history(row: _Row, prompt: str, parts: Parts) -> Parts:
    """Put a prompt before an answer, and before it the earlier turns of a column `history`."""
    if not filled(row.values, _HISTORY):
        return replace(parts, before=_user(prompt))
    turns = row.values[_HISTORY]
    if not isinstance(turns, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in turns):
        raise RowError(f"{_HISTORY!r} holds {kind_of(turns)}, not a list of pairs of a prompt and its answer")
    earlier = tuple(message for asked, said in turns for message in (*_user(str(asked)), *_assistant(str(said))))
    return replace(parts, before=(*earlier, *_user(prompt)), chat=True)


def _read_chat(shape: Recognized, row: _Row) -> Parts:
    column = shape.names["messages"]
    return _split(row.messages(column), column)


def _read_chatml(shape: Recognized, row: _Row) -> Parts:
    column = shape.names["text"]
    turns = [{"role": turn["role"], "content": turn["content"]} for turn in _TURN.finditer(row.text(column))]
    if not turns:
        raise RowError(f"{column!r} holds no ChatML, and the first row does")
    return _split(read_messages(turns, column), column)


def _read_pair(shape: Recognized, row: _Row) -> Parts:
    prompt, response = shape.names["prompt"], shape.names["response"]
    if row.is_chat(prompt):
        # Only the response is trained: answers in the prompt are context, as in TRL.
        before = tuple(_untrained(message) for message in row.messages(prompt))
        given = row.messages(response) if row.is_chat(response) else _assistant(row.text(response))
        return Parts(before, given, chat=True)
    if isinstance(row.values.get(response), list | Mapping):
        return Parts(_user(row.text(prompt)), row.messages(response), chat=True)
    return _after_history(row, row.text(prompt), Parts(answer=_assistant(row.text(response))))


def _untrained(message: Message) -> Message:
    return {**message, "weight": 0} if message["role"] == "assistant" else message


def _read_text(shape: Recognized, row: _Row) -> Parts:
    return Parts(text=row.text(shape.names["text"]))


def _read_preference(shape: Recognized, row: _Row) -> Parts:
    chosen, rejected = shape.names["chosen"], shape.names["rejected"]
    before = _asked(shape, row)
    if row.is_chat(chosen) or row.is_chat(rejected):
        good, bad = (
            row.messages(name) if row.is_chat(name) else _assistant(row.text(name)) for name in (chosen, rejected)
        )
        return _of_dialogues(row, before, good, bad)
    if not before:
        return _read_dialogues(shape, row)
    good_text, bad_text = row.text(chosen), row.text(rejected)
    _differ(good_text, bad_text)
    parts = Parts(before, _assistant(good_text), _assistant(bad_text), chat=_is_asked_as_chat(shape, row))
    return _after_history(row, before[0]["content"], parts) if filled(row.values, _HISTORY) else parts


def _is_asked_as_chat(shape: Recognized, row: _Row) -> bool:
    return "messages" in shape.names or row.is_chat(shape.names["prompt"])


def _asked(shape: Recognized, row: _Row) -> tuple[Message, ...]:
    """Read the prompt of a preference, which may be missing: then both answers are whole dialogues."""
    if "messages" in shape.names:
        return row.messages(shape.names["messages"])
    name = shape.names.get("prompt")
    if name is None:
        return ()
    return row.messages(name) if row.is_chat(name) else _user(_instruction(shape, row))


def _of_dialogues(row: _Row, before: tuple[Message, ...], good: tuple[Message, ...], bad: tuple[Message, ...]) -> Parts:
    """Divide two dialogues into what they have in common, which is the prompt, and the answers.

    Many datasets repeat the prompt in both answers, some with a system message that the prompt's column lacks.
    """
    _differ(good, bad)
    if good[0]["role"] == "assistant" and bad[0]["role"] == "assistant" and before:
        return Parts(before, good, bad, chat=True)
    shared = 0
    while shared < min(len(good), len(bad)) - 1 and good[shared] == bad[shared]:
        shared += 1
    while shared and good[shared - 1]["role"] == "assistant":
        shared -= 1
    if not shared:
        raise RowError("its chosen and rejected answers do not begin with the same prompt")
    common = good[:shared]
    if before and not _repeats(common, before):
        row.notes.add("The prompt is taken from the beginning of the answers; the prompt's column differs", row.number)
    if before and common[0]["role"] != "system" and before[0]["role"] == "system":
        common = (before[0], *common)
    return Parts(common, good[shared:], bad[shared:], chat=True)


def _repeats(common: tuple[Message, ...], before: tuple[Message, ...]) -> bool:
    """Whether dialogues begin with what the prompt's column asks."""
    said = {" ".join(message["content"].split()) for message in common}
    return all(" ".join(message["content"].split()) in said for message in before if message["role"] != "system")


def _read_dialogues(shape: Recognized, row: _Row) -> Parts:
    chosen, rejected = shape.names["chosen"], shape.names["rejected"]
    good, bad = _dialogue(row.text(chosen), chosen), _dialogue(row.text(rejected), rejected)
    if good[:-1] != bad[:-1]:
        raise RowError(f"{chosen!r} and {rejected!r} are not two answers to the same dialogue")
    _differ(good, bad)
    return Parts(good[:-1], good[-1:], bad[-1:], chat=True)


def _differ(good: Any, bad: Any) -> None:
    if good == bad:
        raise SameAnswersError("its chosen and rejected answers are the same")


class SameAnswersError(RowError):
    """Nothing can be preferred in a pair of equal answers; a run leaves it out and counts it."""


def _dialogue(text: str, column: str) -> tuple[Message, ...]:
    marks = list(_HUMAN.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    turns = tuple(
        {"role": "user" if mark[1] == "Human" else "assistant", "content": text[mark.end() : end].strip()}
        for mark, end in zip(marks, ends, strict=True)
    )
    if len(turns) < 2 or turns[-1]["role"] != "assistant" or not text[: marks[0].start()].strip() == "":
        raise RowError(f"it has no prompt, and {column!r} is no dialogue of Human: and Assistant: either")
    return turns


_Reader = Callable[[Recognized, _Row], Parts]
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
