"""Decide what the rows of a dataset are: plain text, prompt and response, or a chat; and read a row as that.

Knows columns and their content; knows nothing of files, tokens or models.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tunefleet.errors import DataError
from tunefleet.spec import TextShape

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plain:
    """Text to learn as a whole."""

    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt (its separator included) and the response that is to be learnt."""

    prompt: str
    response: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation of which the assistant's turns are to be learnt."""

    messages: list[Message]
    tools: list[Any] | None = None


Example = Plain | Pair | Chat

# People who exchange data sets of conversations use both vocabularies.
_ROLES = {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True, slots=True)
class Shape:
    """How the rows of one dataset are read.

    Args:
        wanted: What each row is, and the columns that hold it; never `auto`.
        origin: What the user calls the dataset, for messages.
    """

    wanted: TextShape
    origin: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are used."""
        if self.wanted.kind == "messages":
            return (self.wanted.messages,)
        return (self.wanted.prompt, self.wanted.response) if self.wanted.kind == "pair" else (self.wanted.text,)

    def read(self, number: int, row: Mapping[str, Any]) -> Example:
        """Read one row.

        Args:
            number: Position of the row, from 1, for messages.
            row: Column → value.

        Raises:
            DataError: If the row lacks a column or holds something else there.
        """
        if self.wanted.kind == "messages":
            return self._chat(number, row, self.wanted.messages)
        if self.wanted.kind == "pair":
            prompt = self._text(number, row, self.wanted.prompt) + self.wanted.separator
            return Pair(prompt, self._text(number, row, self.wanted.response))
        return Plain(self._text(number, row, self.wanted.text))

    def _value(self, number: int, row: Mapping[str, Any], column: str) -> Any:
        if column not in row:
            raise DataError(
                f"Row {number} of {self.origin} has no column {column!r}.", hint=f"It has: {_list(row.keys())}."
            )
        return row[column]

    def _text(self, number: int, row: Mapping[str, Any], column: str) -> str:
        value = self._value(number, row, column)
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        hint = "Name a column of conversations as `messages_field`." if isinstance(value, list) else None
        raise DataError(f"Row {number} of {self.origin} holds {_kind_of(value)} in {column!r}, not text.", hint=hint)

    def _chat(self, number: int, row: Mapping[str, Any], column: str) -> Chat:
        value = self._value(number, row, column)
        where = f"Row {number} of {self.origin}"
        messages = messages_of(where, column, value)
        if not any(message["role"] == "assistant" for message in messages):
            raise DataError(f"{where} has no message of the assistant in {column!r}, so nothing could be learnt.")
        tools = row.get("tools")
        return Chat(messages, json.loads(tools) if isinstance(tools, str) else tools)


def choose(wanted: TextShape, available: Iterable[str], origin: str) -> Shape:
    """Decide what the rows are, from what the user said or else from the columns that exist.

    Args:
        wanted: The shape of the spec; `auto` if nothing was said.
        available: The columns of the first row.
        origin: What the user calls the dataset.

    Raises:
        DataError: If a named column does not exist, or none was named and none has a usual name.
    """
    columns = set(available)
    shape = Shape(_usual(columns, wanted, origin) if wanted.kind == "auto" else wanted, origin)
    for column in shape.columns:
        if column not in columns:
            raise DataError(f"{origin} has no column {column!r}.", hint=f"It has: {_list(columns)}.")
    return shape


def _usual(columns: set[str], wanted: TextShape, origin: str) -> TextShape:
    for name in ("messages", "conversations"):
        if name in columns:
            return TextShape("messages", messages=name)
    for response in ("response", "completion"):
        if {"prompt", response} <= columns:
            return replace(wanted, kind="pair", prompt="prompt", response=response)
    if "text" in columns:
        return TextShape("text", text="text")
    raise DataError(
        f"{origin} has none of the usual columns `text`, `messages`, `prompt` with `response`.",
        hint=f"Name the ones to use in `data`; it has: {_list(columns)}.",
    )


def messages_of(where: str, column: str, value: Any) -> list[Message]:
    """Read a list of messages, in either vocabulary.

    Args:
        where: Names the row.
        column: That it stands in.
        value: What stands there.

    Raises:
        DataError: If that is no list of messages.
    """
    if not isinstance(value, list) or not value:
        raise DataError(
            f"{where} holds {_kind_of(value)} in {column!r}, not a list of messages.",
            hint="A message is {'role': 'user', 'content': '…'}.",
        )
    return [_message(where, column, message) for message in value]


def _message(where: str, column: str, message: Any) -> Message:
    if isinstance(message, dict) and "role" not in message and {"from", "value"} <= message.keys():
        message = {"role": message["from"], "content": message["value"]}
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise DataError(
            f"{where} holds {_kind_of(message)} among the messages of {column!r}.",
            hint="A message is {'role': 'user', 'content': '…'}.",
        )
    if message.get("content") is None and not message.get("tool_calls"):
        raise DataError(f"{where} has a message of the {message['role']} without content in {column!r}.")
    # A table of rows with different messages fills the missing keys with null; templates take a null for a value.
    return {key: value for key, value in message.items() if value is not None} | {
        "role": _ROLES.get(message["role"], message["role"]),
        "content": message.get("content") or "",
    }


def _kind_of(value: Any) -> str:
    names = {type(None): "nothing (null)", list: "a list", dict: "an object", bool: "true or false", str: "text"}
    return names.get(type(value), f"a {type(value).__name__}")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(str(name) for name in names)) or "no column"
