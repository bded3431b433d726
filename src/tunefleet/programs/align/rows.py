"""What is in a row of preferences or prompts; every error names the row and the column."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tunefleet.dataset.messages import Message, looks_like_messages, read_messages
from tunefleet.dataset.notes import Notes, filled
from tunefleet.dataset.parts import Parts, SameAnswersError
from tunefleet.dataset.shapes import Recognized, named_judged, named_pair
from tunefleet.dataset.values import RowError
from tunefleet.errors import DataError
from tunefleet.programs.data.readers import Rows, numbered
from tunefleet.programs.data.shapes import Place, prompt_text, without_weights

Content = str | list[Message]
Row = Mapping[str, Any]
_SYSTEM: Final = ("system", "system_prompt")


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


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows are read.

    Args:
        origin: What the user calls the dataset.
        separator: Behind a prompt that is a text.
        notes: Gets what rows have and nothing reads.
    """

    origin: str
    separator: str
    notes: Notes = field(default_factory=Notes)

    def ignore_others(self, row: Row, used: Collection[str | None], number: int) -> None:
        """Note the columns of a row that nothing reads."""
        for column, value in row.items():
            if column not in used and column not in _SYSTEM and value not in (None, "", [], {}):
                self.notes.ignore_column(column, number)

    def each(self, rows: Rows, shape: Recognized) -> Iterator[tuple[Parts, Place]]:
        """Yield the parts of each row; pairs of equal answers are left out and noted.

        Raises:
            DataError: If a row lacks a column or has something else there.
        """
        for number, row in numbered(rows):
            place = Place(number, self.origin)
            try:
                yield shape.read(row, self.separator, self.notes, number), place
            except SameAnswersError:
                self.notes.add("Pairs whose chosen and rejected answers are the same are left out", number)
            except RowError as error:
                raise DataError(f"{place}: {error}.") from None


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
            value = _value(place, row, reference)
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


def read_prompt(row: Row, column: str, place: Place, how: Reading) -> Content:
    """Read a prompt of one column, with the system prompt of the row before it.

    Raises:
        DataError: If it is neither a text nor a chat.
    """
    value = _value(place, row, column)
    system = next((row[name] for name in _SYSTEM if name != column and filled(row, name)), None)
    try:
        if looks_like_messages(value):
            messages, _ = without_weights(read_messages(value, column, how.notes, place.row))
            if system is not None and not any(message["role"] == "system" for message in messages):
                messages.insert(0, {"role": "system", "content": str(system)})
            return messages
    except RowError as error:
        raise DataError(f"{place}: {error}.") from None
    if not isinstance(value, str) or not value:
        what = "an empty text" if value == "" else "neither a text nor a list of messages"
        raise DataError(f"{place} holds {what} in {column!r}.")
    before = "" if system is None else f"{system}{how.separator}"
    return f"{before}{value}{how.separator}"


def columns_of(kind: str, columns: tuple[str | None, ...]) -> Callable[[Row, str], tuple[str, ...]]:
    """Return what finds the columns that a kind trains on, for `open_rows`."""
    shapes = {"pairs": named_pair, "judged": named_judged}

    def found(first: Row, origin: str) -> tuple[str, ...]:
        if kind in shapes:
            return shapes[kind](columns, first, origin).columns  # type: ignore[arg-type]
        return tuple(column for column in columns if column is not None)

    return found


def _value(place: Place, row: Row, column: str) -> Any:
    if column not in row:
        known = ", ".join(sorted(map(str, row)))
        raise DataError(f"{place} has no column {column!r}.", hint=f"It has: {known or 'no column'}.")
    return row[column]


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
    if not parts.before or not any(message["content"] for message in parts.before):
        raise DataError(f"{place} has an empty prompt.")
    return prompt_text(parts.before, how.separator), texts, None
