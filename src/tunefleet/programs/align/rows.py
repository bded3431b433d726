"""What is in a row of preferences or prompts; every error names the row and the column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tunefleet.dataset.parts import Parts
from tunefleet.dataset.shapes import named_judged, named_pair
from tunefleet.errors import DataError
from tunefleet.programs.data.prompt_rows import Content, Reading, Row, read_prompt, value_of
from tunefleet.programs.data.readers import Rows, numbered
from tunefleet.programs.data.shapes import Place, prompt_text, without_weights


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with a better and a worse answer; all texts (the separator behind the prompt), or all chats."""

    prompt: Content
    chosen: Content
    rejected: Content
    tools: list[Any] | None = None
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer to a prompt, and whether it is good."""

    prompt: Content
    completion: Content
    good: bool
    tools: list[Any] | None = None
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, and the right answer if there is one."""

    prompt: Content
    reference: str | None
    tools: list[Any] | None = None
    place: Place = field(default=Place(), compare=False)


def pairs(rows: Rows, columns: tuple[str, str, str], how: Reading) -> Iterator[Pair]:
    """Read rows as pairs.

    Args:
        rows: As they are.
        columns: Of prompt, better and worse answer.
        how: They are read.

    Raises:
        DataError: If a row lacks a column or has something else there.
    """
    for parts, place in how.each(rows, named_pair(columns, rows[0], how.origin)):
        prompt, answers, tools = _contents(parts, how, place)
        yield Pair(prompt, answers[0], answers[1], tools, place)


def judged(rows: Rows, columns: tuple[str, str, str], how: Reading) -> Iterator[Judged]:
    """Read rows as judged answers; a pair counts as two.

    Args:
        rows: As they are.
        columns: Of prompt, answer and label.
        how: They are read.

    Raises:
        DataError: If a row lacks a column or has something else there.
    """
    for parts, place in how.each(rows, named_judged(columns, rows[0], how.origin)):
        prompt, answers, tools = _contents(parts, how, place)
        if parts.good is None:
            yield Judged(prompt, answers[0], good=True, tools=tools, place=place)
            yield Judged(prompt, answers[1], good=False, tools=tools, place=place)
        else:
            yield Judged(prompt, answers[0], parts.good, tools, place)


def asked(rows: Rows, columns: tuple[str, str | None], how: Reading) -> Iterator[Asked]:
    """Read rows as prompts.

    Args:
        rows: As they are.
        columns: Of the prompt and of the right answer, if that is there.
        how: They are read.

    Raises:
        DataError: If a row lacks a column or has something else there, or a chat among texts.
    """
    prompt, reference = columns
    shape: type[Content] | None = None
    for number, row in numbered(rows):
        place = Place(number, how.origin)
        right = None
        if reference is not None:
            value = value_of(place, row, reference)
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise DataError(f"{place} has no text in {reference!r}, with which an answer could be compared.")
            right = str(value)
        content = read_prompt(row, prompt, place, how)
        if shape is not None and type(content) is not shape:
            holds, before = ("a text", "chats") if isinstance(content, str) else ("a chat", "texts")
            raise DataError(
                f"{place} holds {holds} in {prompt!r}, and the rows before it hold {before}.", hint="Make all the same."
            )
        shape = type(content)
        how.ignore_others(row, (prompt, reference), number)
        yield Asked(content, right, place=place)


def columns_of(kind: str, columns: tuple[str | None, ...]) -> Callable[[Row, str], tuple[str, ...]]:
    """Return what finds the columns that a kind trains on, for `open_rows`."""
    shapes = {"pairs": named_pair, "judged": named_judged}

    def found(first: Row, origin: str) -> tuple[str, ...]:
        if kind in shapes:
            return shapes[kind](columns, first, origin).columns  # type: ignore[arg-type]
        return tuple(column for column in columns if column is not None)

    return found


def _contents(parts: Parts, how: Reading, place: Place) -> tuple[Content, list[Content], list[Any] | None]:
    """Return prompt and answers as texts or as chats."""
    answers = [parts.answer, *([parts.worse] if parts.worse is not None else [])]
    for message in (message for answer in answers for message in answer):
        if message["role"] == "user":
            raise DataError(
                f"{place}: an answer has a message of the user, which would be trained as a part of it.",
                hint="End each chat with the assistant's answer.",
            )
        if message.get("weight") == 0:
            raise DataError(f"{place}: an answer has weight 0, and answers are what is compared.")
    if parts.chat:
        prompt, _ = without_weights(parts.before)
        return prompt, [without_weights(answer)[0] for answer in answers], parts.tools
    texts: list[Content] = [str(answer[0]["content"]) for answer in answers]
    if not all(texts):
        raise DataError(f"{place} has an empty text as an answer.")
    if not parts.before or not any(message["content"] for message in parts.before):
        raise DataError(f"{place} has an empty prompt.")
    return prompt_text(parts.before, how.separator), texts, None
