"""What a training run gets from a row: a text, a prompt with its response, or a chat.

`tunefleet.analysis.dataset.shapes` reads the row; here its parts become an example. Independent of files, tokens and
models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tunefleet.analysis.dataset.messages import Message, RowError
from tunefleet.analysis.dataset.notes import Notes
from tunefleet.analysis.dataset.parts import Parts, SameAnswersError
from tunefleet.analysis.dataset.shapes import SUPERVISED, Recognized, named, recognize
from tunefleet.errors import DataError
from tunefleet.spec import TextShape


@dataclass(frozen=True, slots=True)
class Place:
    """The row and dataset of an example, for messages."""

    row: int = 0
    origin: str = "the data"

    def __str__(self) -> str:
        return f"Row {self.row} of {self.origin}"


@dataclass(frozen=True, slots=True)
class Plain:
    """Text that is trained completely."""

    text: str
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt (its separator included) and the response that is trained."""

    prompt: str
    response: str
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation of which the assistant's messages are trained."""

    messages: list[Message]
    tools: list[Any] | None = None
    untrained: frozenset[int] = frozenset()
    prompt: int = 0
    place: Place = field(default=Place(), compare=False)


Example = Plain | Pair | Chat
Content = str | list[Message]
"""A prompt or an answer: a text, or a chat."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the rows of a dataset are read."""

    recognized: Recognized
    origin: str
    separator: str = "\n\n"
    notes: Notes = field(default_factory=Notes, compare=False, repr=False)
    as_chat: bool = False

    @property
    def kind(self) -> Literal["text", "pair", "messages"]:
        """The kind of most rows; a row with earlier turns is always a chat."""
        kind = self.recognized.kind
        pairs = kind in {"alpaca", "prompt_response"} and not self.as_chat
        return "text" if kind == "text" else "pair" if pairs else "messages"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the shape."""
        return self.recognized.columns

    def read(self, number: int, row: Mapping[str, Any], notes: Notes | None = None) -> Example:
        """Read one row.

        Args:
            notes: Collects what is not used, instead of the notes of the shape.

        Raises:
            DataError: If the row lacks a column or a value is invalid; names the row.
        """
        parts = self._parts(number, row, notes)
        if self.as_chat and self.recognized.kind in {"alpaca", "prompt_response"} and not parts.chat:
            # Only the response is trained, as in a pair.
            parts = replace(parts, chat=True, prompted=True)
        return example(parts, self.separator, Place(number, self.origin))

    def parts(self, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[Parts, Place]]:
        """Yield the parts of numbered rows; pairs of equal answers are skipped and noted.

        Raises:
            DataError: If a row lacks a column or a value is invalid; names the row.
        """
        for number, row in rows:
            try:
                yield self._parts(number, row), Place(number, self.origin)
            except SameAnswersError:
                self.notes.add("Pairs whose chosen and rejected answers are the same are skipped", number)

    def _parts(self, number: int, row: Mapping[str, Any], notes: Notes | None = None) -> Parts:
        try:
            return self.recognized.read(row, self.separator, self.notes if notes is None else notes, number)
        except SameAnswersError:
            raise
        except RowError as error:
            place = Place(number, self.origin)
            raise DataError(f"{place}: {error}.", hint=_hint(self.recognized, row)) from None


def example(parts: Parts, separator: str, place: Place) -> Example:
    """Return the trained example for the parts of a row."""
    if parts.text is not None:
        return Plain(parts.text, place)
    if parts.chat:
        messages, untrained = without_weights((*parts.before, *parts.answer))
        return Chat(messages, parts.tools, untrained, len(parts.before) if parts.prompted else 0, place)
    return Pair(prompt_text(parts.before, separator), parts.answer[0]["content"], place)


def prompt_of(parts: Parts, separator: str) -> Content:
    """Return the prompt of a row: a chat, or a text that ends with the separator."""
    return without_weights(parts.before)[0] if parts.chat else prompt_text(parts.before, separator)


def prompt_text(messages: tuple[Message, ...], separator: str) -> str:
    """Return a prompt that is not a chat as one text, each part followed by the separator."""
    return "".join(f"{message['content']}{separator}" for message in messages)


def answers(messages: Sequence[Message]) -> frozenset[int]:
    """Return the indices of the assistant's messages."""
    return frozenset(at for at, message in enumerate(messages) if message["role"] == "assistant")


def without_weights(messages: tuple[Message, ...]) -> tuple[list[Message], frozenset[int]]:
    """Split messages into the input of a template, and the indices of those that are not trained."""
    untrained = frozenset(at for at, message in enumerate(messages) if message.get("weight") == 0)
    return [{key: value for key, value in each.items() if key != "weight"} for each in messages], untrained


def choose(wanted: TextShape, first: Mapping[str, Any], origin: str) -> Shape:
    """Choose the shape of the rows, from the spec or else from the first row.

    Args:
        wanted: The shape of the spec; `auto` to recognize it.

    Raises:
        DataError: If a named column does not exist, or none was named and the shape of the rows is unknown.
    """
    if wanted.kind == "auto":
        return Shape(recognize(first, "auto", origin, SUPERVISED), origin, wanted.separator, as_chat=wanted.as_chat)
    return Shape(named(wanted.names, first, origin), origin, wanted.separator, as_chat=wanted.as_chat)


def _hint(recognized: Recognized, row: Mapping[str, Any]) -> str | None:
    """Return a hint for a row that holds a chat where a text was expected."""
    if recognized.kind in {"text", "prompt_response"}:
        chats = [name for name in recognized.columns if isinstance(row.get(name), list)]
        if chats:
            return f"If {chats[0]!r} holds conversations, set `data.messages_field: {chats[0]}`."
    return None
