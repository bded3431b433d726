"""How much the tasks of one document may be together: what all share, each of them has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

# Of a document.
MAX_TASKS: Final = 5_000
MAX_MERGED_VALUES: Final = 250_000
MAX_MERGED_CHARACTERS: Final = 32_000_000
"""Of all tasks of a document, each with what all share."""
# Of all tasks of a document.
MAX_PLACEHOLDERS: Final = 50_000
WAY_OUT: Final = "put what is long into a file that `data` names, or submit the tasks in several documents"


class Size(NamedTuple):
    """How much a value is: itself and everything in it, and the characters of its texts and keys."""

    values: int = 0
    characters: int = 0

    def __add__(self, other: Size) -> Size:  # type: ignore[override]  # of tuples it would put one behind the other
        return Size(self.values + other.values, self.characters + other.characters)

    @property
    def too_much(self) -> str | None:
        """What is over the limit for all tasks of a document, in words; None if nothing is."""
        if self.values > MAX_MERGED_VALUES:
            return f"more than {MAX_MERGED_VALUES:,} values"
        return f"more than {MAX_MERGED_CHARACTERS:,} characters" if self.characters > MAX_MERGED_CHARACTERS else None


class Scale:
    """Weighs values; one that several tasks share is looked at once.

    Args:
        shared: What all share; must stay as it is.
    """

    def __init__(self, shared: Mapping[str, Any]) -> None:
        self._known: dict[int, Size] = {}
        self.shared = self._learn(shared)

    def weigh(self, value: Any) -> Size:
        """Return how much a value is."""
        known = self._known.get(id(value))
        if known is not None:
            return known
        return sum((self.weigh(each) for each in inside(value)), own(value))

    def _learn(self, value: Any) -> Size:
        if not isinstance(value, dict | list):
            return own(value)
        found = sum((self._learn(each) for each in inside(value)), own(value))
        self._known[id(value)] = found
        return found


def own(value: Any) -> Size:
    """Return how much a value is without what is in it."""
    if isinstance(value, dict):
        return Size(1, sum(map(len, value)))
    return Size(1, len(value) if isinstance(value, str) else 0)


def inside(value: Any) -> Iterator[Any]:
    """Yield what is in a value: nothing but for mappings and lists."""
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
