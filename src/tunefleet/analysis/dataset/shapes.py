"""Recognizes the shape of rows by their columns, and reads a row of any shape into the same parts.

The only reader of rows: data tasks, the web UI, previews, and every kind of training use it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from tunefleet.analysis.dataset.messages import looks_like_messages, read_flag
from tunefleet.analysis.dataset.notes import Notes, filled, is_empty
from tunefleet.analysis.dataset.parts import (
    CHATML,
    HISTORY,
    READERS,
    SYSTEM,
    TOOLS,
    Parts,
    Row,
    read_label,
    with_system,
    with_tools,
)
from tunefleet.errors import DataError
from tunefleet.spec.value_preview import nearest

Kind = Literal[
    "alpaca", "sharegpt", "messages", "chatml", "prompt_response", "preference", "hh", "judged", "prompt", "text"
]

# Shapes for supervised training.
SUPERVISED: Final[frozenset[Kind]] = frozenset({"alpaca", "sharegpt", "messages", "chatml", "prompt_response", "text"})
# Shapes for training on preference pairs.
PREFERENCES: Final[frozenset[Kind]] = frozenset({"preference", "hh"})
# Shapes for training on answers labelled good or bad; a pair counts as one of each.
JUDGED: Final[frozenset[Kind]] = PREFERENCES | {"judged"}

_CHATS: Final = ("messages", "conversations", "conversation")
_PROMPTS: Final = ("prompt", "question", "query", "instruction", "input")
_RESPONSES: Final = ("response", "completion", "answer", "output")
_INPUTS: Final = ("input", "context")
_LABELS: Final = ("kto_tag", "label")
SIDE_COLUMNS: Final = (*SYSTEM, TOOLS, HISTORY, *_INPUTS)
"""Columns that are read in addition to those of the shape, in every row that has them."""
_TITLES: Final[dict[Kind, str]] = {
    "alpaca": "Alpaca rows",
    "sharegpt": "ShareGPT conversations",
    "messages": "chats of messages",
    "chatml": "ChatML texts",
    "prompt_response": "prompts and responses",
    "preference": "preference pairs",
    "hh": "preference pairs of complete dialogues",
    "judged": "answers with a label",
    "prompt": "prompts",
    "text": "plain texts",
}
_KINDS_OF_SPEC: Final[dict[str, frozenset[Kind]]] = {
    "alpaca": frozenset({"alpaca"}),
    "sharegpt": frozenset({"sharegpt"}),
    "messages": frozenset({"messages", "chatml"}),
    "prompt_response": frozenset({"prompt_response"}),
    "preference": PREFERENCES,
    "text": frozenset({"text", "chatml"}),
}
# What a column is used for → its key in the `data` block.
_KEYS: Final = {
    "text": "text_field", "messages": "messages_field", "prompt": "prompt_column", "response": "response_column",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recognized:
    """A shape, and the columns that hold it.

    Args:
        names: Content of a column → its name.
        base: For answers with a label: the shape without the label.
        by_row: Whether columns that only some rows have (a second part of the prompt, another column with it) are
            looked up in each row; not if the user named the columns.
    """

    kind: Kind
    names: Mapping[str, str]
    base: Kind | None = None
    by_row: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, in the order of the kind."""
        return tuple(self.names.values())

    @property
    def sentence(self) -> str:
        """Description of the recognized shape."""
        return f"{_TITLES[self.kind]} ({', '.join(self.columns)})"

    def read(self, values: Mapping[str, Any], separator: str, notes: Notes | None = None, number: int = 0) -> Parts:
        """Return the parts of a row.

        Args:
            separator: Between the instruction and the input of Alpaca rows.
            notes: Collects values of the row that nothing reads.
            number: Row number, from 1, for the notes.

        Raises:
            RowError: If the row does not have the shape.
        """
        row = Row(values, separator, notes or Notes(), number)
        shape = self._of_row(values)
        parts = READERS[shape.base or shape.kind](shape.names, row)
        if shape.base is not None:
            parts = replace(parts, good=read_label(row, shape.names["label"]))
        used = {*shape.names.values(), *row.used}
        if parts.text is None:
            parts = with_tools(with_system(parts, row, used), row, used)
        for column, value in values.items():
            if column not in used and not is_empty(value):
                row.notes.ignore_column(column, number)
        return parts

    def _of_row(self, values: Mapping[str, Any]) -> Recognized:
        look = _BY_ROW.get(self.kind) if self.by_row else None
        return (look(values) if look is not None else None) or self


def recognize(values: Mapping[str, Any], wanted: str, origin: str, kinds: Collection[Kind] = ()) -> Recognized:
    """Recognize the shape of rows by the columns of the first one.

    Args:
        values: The first row.
        wanted: `auto`, or the shape named in the spec.
        origin: Name of the dataset in messages.
        kinds: The usable shapes; all by default.

    Raises:
        DataError: If it is none of the shapes, or not a usable one.
    """
    if wanted != "auto":
        kinds = _KINDS_OF_SPEC[wanted]
    found = [shape for look in _LOOKS if (shape := look(values)) is not None]
    usable = [shape for shape in found if not kinds or shape.kind in kinds]
    if usable:
        # Empty columns of another shape are common in tables, so filled ones win.
        return next((shape for shape in usable if any(filled(values, name) for name in shape.columns)), usable[0])
    columns = f"columns: {', '.join(map(str, values)) or 'none'}"
    if found and wanted == "auto":
        raise DataError(f"{origin} has {found[0].sentence}; {_elsewhere(found[0].kind)}.", hint=f"It has {columns}.")
    what = "an unknown shape" if wanted == "auto" else f"no rows of the shape {wanted}"
    raise DataError(
        f"{origin} has {what} ({columns}).",
        hint="Name the columns in `data`, such as prompt_column and response_column, messages_field or text_field.",
    )


def _elsewhere(kind: Kind) -> str:
    """Return which runs use a shape, for an error message."""
    if kind in PREFERENCES:
        return "dpo, orpo, kto and reward train on them"
    return "kto trains on them" if kind == "judged" else "sft and lora_sft train on them"


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


class MissingColumnError(DataError):
    """A column that the user has named is not in the data; `column` finds the key that names it."""

    def __init__(self, column: str, origin: str, hint: str) -> None:
        super().__init__(f"{origin} has no column {column!r}.", hint=hint)
        self.column = column


def named(names: Mapping[str, str], first: Mapping[str, Any], origin: str) -> Recognized:
    """Return the shape of rows whose columns the user has named.

    Args:
        names: `text`, or `messages`, or `prompt` with `response` → column.
        origin: Name of the dataset in errors.

    Raises:
        DataError: If the first row lacks a column.
    """
    for name, column in names.items():
        if column not in first:
            hint = f"{columns_hint(column, map(str, first))} Set `data.{_KEYS[name]}`."
            raise MissingColumnError(column, origin, hint)
    kind: Kind = "text" if "text" in names else "messages" if "messages" in names else "prompt_response"
    return Recognized(kind, names)


def named_pair(columns: tuple[str, str, str], first: Mapping[str, Any], origin: str) -> Recognized:
    """Return the shape of preference pairs.

    Args:
        columns: Columns of prompt, better and worse answer, from the spec.
        origin: Name of the dataset in errors.

    Raises:
        DataError: If the first row lacks a column, or the rows have another shape.
    """
    prompt, chosen, rejected = columns
    if columns == ("prompt", "chosen", "rejected") and not {prompt, chosen} <= first.keys():
        return recognize(first, "auto", origin, PREFERENCES)
    require_columns((chosen, rejected), first, origin)
    found = {"chosen": chosen, "rejected": rejected}
    if prompt in first:
        return preference(first, {"prompt": prompt, **found})
    if prompt != "prompt":
        require_columns((prompt,), first, origin)
    return preference(first, found)


def named_judged(columns: tuple[str, str, str], first: Mapping[str, Any], origin: str) -> Recognized:
    """Return the shape of answers with a label; a pair counts as two of them.

    Args:
        columns: Columns of prompt, answer and label, from the spec.
        origin: Name of the dataset in errors.

    Raises:
        DataError: If the first row lacks a column, or the rows have another shape.
    """
    prompt, response, label = columns
    if {prompt, response, label} <= first.keys():
        return judged(Recognized("prompt_response", {"prompt": prompt, "response": response}), label)
    if columns == ("prompt", "completion", "label"):
        return recognize(first, "auto", origin, JUDGED)
    if {"chosen", "rejected"} <= first.keys():
        return named_pair((prompt, "chosen", "rejected"), first, origin)
    require_columns(columns, first, origin)
    raise AssertionError("one of them is missing")


def require_columns(columns: Iterable[str], first: Mapping[str, Any], origin: str) -> None:
    """Reject a dataset whose first row lacks a column.

    Raises:
        DataError: If a column is missing.
    """
    for column in columns:
        if column not in first:
            raise MissingColumnError(column, origin, columns_hint(column, map(str, first)))


def columns_hint(column: str, known: Iterable[str]) -> str:
    """Return the hint for a missing column: the nearest name, and all columns."""
    names = sorted(known)
    guess = nearest(column, names)
    return f"{f'Did you mean {guess}? ' if guess else ''}It has: {', '.join(names) or 'no column'}."


def _judged(values: Mapping[str, Any]) -> Recognized | None:
    label = next((name for name in _LABELS if name in values), None)
    base = next((shape for look in (_chat, _alpaca, _pair) if (shape := look(values)) is not None), None)
    # `label` is a common column name in other datasets, so its values must be boolean.
    if label is None or base is None or (label == "label" and read_flag(values[label]) is None):
        return None
    return judged(base, label)


def judged(base: Recognized, label: str) -> Recognized:
    """Return the shape of answers with a label.

    Args:
        base: The shape without the label.
    """
    return Recognized("judged", {**base.names, "label": label}, base.kind, base.by_row)


def _chat(values: Mapping[str, Any]) -> Recognized | None:
    present = [name for name in _CHATS if name in values and _may_be_chat(values[name])]
    name = next((name for name in present if filled(values, name)), present[0] if present else None)
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
        return None  # a prompt and a response, not Alpaca
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
    chatml = isinstance(text, str) and CHATML.match(text.lstrip()) is not None
    return Recognized("chatml" if chatml else "text", {"text": "text"})


_BY_ROW: Final[dict[Kind, Callable[[Mapping[str, Any]], Recognized | None]]] = {
    "alpaca": _alpaca,
    "preference": _preference,
    "hh": _preference,
    "judged": _judged,
}
# In order of precedence: the more specific shape first.
_LOOKS: Final = (_preference, _judged, _chat, _alpaca, _pair, _text)


def _filled_first(values: Mapping[str, Any], names: Collection[str]) -> str | None:
    return next((name for name in names if filled(values, name)), None)
