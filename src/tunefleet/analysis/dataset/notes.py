"""Notes about unused parts of a dataset: each once, with its number of occurrences and the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Columns that are listed by name.
_MOST: Final = 20
# Characters of a column's name that are shown.
_LONGEST: Final = 100


class Notes:
    """Collects the parts of a dataset that a training run does not use.

    A note is a sentence without a full stop. Columns are collected separately and listed in one sentence.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int]] = {}
        self._columns: dict[str, tuple[int, int]] = {}

    def add(self, sentence: str, row: int) -> None:
        """Add a note about a row.

        Args:
            sentence: The note; equal sentences are counted together.
            row: Row number, from 1.
        """
        _count(self._found, sentence, row)

    def ignore_column(self, column: str, row: int) -> None:
        """Note that a row has a value in an unused column."""
        _count(self._columns, column, row)

    def merge(self, other: Notes) -> None:
        """Add the notes collected elsewhere, for example in another process."""
        for own, others in ((self._found, other._found), (self._columns, other._columns)):
            for key, (count, row) in others.items():
                # Rows are numbered over all processes, so the smallest number is the first row.
                known, first = own.get(key, (0, row))
                own[key] = (known + count, min(first, row))

    @property
    def sentences(self) -> tuple[str, ...]:
        """All notes, in the order of their first occurrence."""
        columns: tuple[str, ...] = ()
        if self._columns:
            listed = list(self._columns.items())
            named = [f"'{column[:_LONGEST]}' ({_rows(found)})" for column, found in listed[:_MOST]]
            more = [f"and {len(listed) - _MOST} more"] if len(listed) > _MOST else []
            columns = (f"Columns that are not used: {', '.join(named + more)}.",)
        return (*(f"{sentence} ({_rows(found)})." for sentence, found in self._found.items()), *columns)


def _count(found: dict[str, tuple[int, int]], key: str, row: int) -> None:
    count, first = found.get(key, (0, row))
    found[key] = (count + 1, min(first, row))


def _rows(found: tuple[int, int]) -> str:
    count, first = found
    return f"row {first}" if count == 1 else f"{count} times, first in row {first}"


def filled(values: Mapping[str, object], column: str) -> bool:
    """Return whether a row has a value in a column."""
    return not is_empty(values.get(column))


def is_empty(value: object) -> bool:
    """Return whether a value is empty: None, or an empty text, list or object."""
    return value in (None, "", [], {})
