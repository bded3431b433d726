"""What is in a row of preferences or prompts; every fault names the row and the column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tunefleet.errors import DataError
from tunefleet.programs.data.readers import Rows
from tunefleet.programs.data.shapes import Message, messages_of

Content = str | list[Message]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with a better and a worse answer; all texts, or all chats."""

    prompt: Content
    chosen: Content
    rejected: Content


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer to a prompt, and whether it is good."""

    prompt: Content
    completion: Content
    good: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, and the right answer if there is one."""

    prompt: Content
    reference: str | None


def pairs(rows: Rows, columns: tuple[str, str, str], origin: str) -> Iterator[Pair]:
    """Read rows as pairs.

    Args:
        rows: As they are.
        columns: Of prompt, better and worse answer.
        origin: What the user calls them.

    Raises:
        DataError: If a row lacks a column or holds something else there.
    """
    prompt, chosen, rejected = columns
    for number, row in enumerate(rows, start=1):
        where = f"Row {number} of {origin}"
        if prompt not in row and isinstance(row.get(chosen), list):
            yield _without_prompt(where, row, columns)
            continue
        asked = _content(where, row, prompt)
        yield Pair(asked, _answer(where, row, chosen, asked), _answer(where, row, rejected, asked))


def judged(rows: Rows, columns: tuple[str, str, str], origin: str) -> Iterator[Judged]:
    """Read rows as judged answers; a pair counts as two.

    Args:
        rows: As they are.
        columns: Of prompt, answer and label.
        origin: What the user calls them.

    Raises:
        DataError: If a row lacks a column or holds something else there.
    """
    prompt, completion, label = columns
    if completion not in rows[0] and {"chosen", "rejected"} <= rows[0].keys():
        for pair in pairs(rows, (prompt, "chosen", "rejected"), origin):
            yield Judged(pair.prompt, pair.chosen, good=True)
            yield Judged(pair.prompt, pair.rejected, good=False)
        return
    for number, row in enumerate(rows, start=1):
        where = f"Row {number} of {origin}"
        asked = _content(where, row, prompt)
        good = _value(where, row, label)
        if not isinstance(good, bool) and good not in (0, 1):
            raise DataError(f"{where} holds {good!r} in {label!r}, not true or false.")
        yield Judged(asked, _answer(where, row, completion, asked), bool(good))


def asked(rows: Rows, columns: tuple[str, str | None], origin: str) -> Iterator[Asked]:
    """Read rows as prompts.

    Args:
        rows: As they are.
        columns: Of the prompt and of the right answer, if that is there.
        origin: What the user calls them.

    Raises:
        DataError: If a row lacks a column or holds something else there, or a chat among texts.
    """
    prompt, reference = columns
    shape: type[Content] | None = None
    for number, row in enumerate(rows, start=1):
        where = f"Row {number} of {origin}"
        right = None
        if reference is not None:
            value = _value(where, row, reference)
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise DataError(f"{where} holds no text in {reference!r}, with which an answer could be compared.")
            right = str(value)
        content = _content(where, row, prompt)
        if shape is not None and type(content) is not shape:
            holds, before = ("a text", "chats") if isinstance(content, str) else ("a chat", "texts")
            raise DataError(
                f"{where} holds {holds} in {prompt!r}, and the rows before it hold {before}.", hint="Make all the same."
            )
        shape = type(content)
        yield Asked(content, right)


def _value(where: str, row: Row, column: str) -> Any:
    if column not in row:
        known = ", ".join(sorted(map(str, row)))
        raise DataError(f"{where} has no column {column!r}.", hint=f"It has: {known or 'no column'}.")
    return row[column]


def _content(where: str, row: Row, column: str) -> Content:
    value = _value(where, row, column)
    if isinstance(value, list):
        return messages_of(where, column, value)
    if not isinstance(value, str) or not value:
        what = "an empty text" if value == "" else "neither text nor a list of messages"
        raise DataError(f"{where} holds {what} in {column!r}.")
    return value


def _answer(where: str, row: Row, column: str, prompt: Content) -> Content:
    answer = _content(where, row, column)
    if isinstance(prompt, str) and not isinstance(answer, str):
        raise DataError(f"{where} holds a chat in {column!r}, and its prompt is a text.", hint="Make both the same.")
    if isinstance(prompt, list) and isinstance(answer, str):
        return [{"role": "assistant", "content": answer}]
    return answer


def _without_prompt(where: str, row: Row, columns: tuple[str, str, str]) -> Pair:
    """Take the common beginning of two chats as their prompt."""
    prompt, first, second = columns
    chosen, rejected = messages_of(where, first, row[first]), messages_of(where, second, _value(where, row, second))
    same = 0
    while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
        same += 1
    if not same or same == len(chosen) or same == len(rejected):
        raise DataError(
            f"{where} has no column {prompt!r}, and its chats in {first!r} and {second!r} do not begin alike and end "
            "in different answers."
        )
    return Pair(chosen[:same], chosen[same:], rejected[same:])
