"""Prompts in rows, as texts or as chats; every error names the row and the column."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tunefleet.dataset.messages import Message, looks_like_messages, read_messages
from tunefleet.dataset.notes import Notes, filled
from tunefleet.dataset.parts import Parts, SameAnswersError
from tunefleet.dataset.shapes import Recognized
from tunefleet.dataset.values import RowError
from tunefleet.errors import DataError
from tunefleet.programs.data.readers import Rows, numbered
from tunefleet.programs.data.shapes import Place, without_weights

Content = str | list[Message]
Row = Mapping[str, Any]
_SYSTEM: Final = ("system", "system_prompt")


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


def read_prompt(row: Row, column: str, place: Place, how: Reading) -> Content:
    """Read a prompt of one column, with the system prompt of the row before it.

    Raises:
        DataError: If it is neither a text nor a chat.
    """
    value = value_of(place, row, column)
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


def value_of(place: Place, row: Row, column: str) -> Any:
    """Return what a row has in a column.

    Raises:
        DataError: If it lacks the column.
    """
    if column not in row:
        known = ", ".join(sorted(map(str, row)))
        raise DataError(f"{place} has no column {column!r}.", hint=f"It has: {known or 'no column'}.")
    return row[column]
