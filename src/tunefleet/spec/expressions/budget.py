"""Size limits for all tasks of a workflow together; shared values count once per task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

MAX_MERGED_VALUES: Final = 250_000
MAX_MERGED_CHARACTERS: Final = 32_000_000
MAX_PLACEHOLDERS: Final = 50_000
SIZE_HINT: Final = "move long data to a file that `data` refers to, or submit the tasks in several workflows"


class Size(NamedTuple):
    """Size of a value: the number of nested values, and the characters of strings and keys."""

    values: int = 0
    characters: int = 0

    def __add__(self, other: Size) -> Size:  # type: ignore[override]  # tuples would concatenate
        return Size(self.values + other.values, self.characters + other.characters)

    @property
    def too_much(self) -> str | None:
        """The limit for all tasks of a workflow that is exceeded; `None` if none is."""
        if self.values > MAX_MERGED_VALUES:
            return f"more than {MAX_MERGED_VALUES:,} values"
        return f"more than {MAX_MERGED_CHARACTERS:,} characters" if self.characters > MAX_MERGED_CHARACTERS else None


class Scale:
    """Measures values; shared values are measured once.

    Args:
        shared: Values that all tasks share; must not be modified or freed, since they are looked up by `id()`.
    """

    def __init__(self, shared: Mapping[str, Any]) -> None:
        # By `id()`, since mappings and lists are not hashable.
        self._known: dict[int, Size] = {}
        self.shared = self._measure(shared)

    def weigh(self, value: Any) -> Size:
        """Return the size of a value."""
        known = self._known.get(id(value))
        if known is not None:
            return known
        return sum((self.weigh(each) for each in inside(value)), own(value))

    def _measure(self, value: Any) -> Size:
        if not isinstance(value, dict | list):
            return own(value)
        size = sum((self._measure(each) for each in inside(value)), own(value))
        self._known[id(value)] = size
        return size


def own(value: Any) -> Size:
    """Return the size of a value without nested values."""
    if isinstance(value, dict):
        return Size(1, sum(map(len, value)))
    return Size(1, len(value) if isinstance(value, str) else 0)


def inside(value: Any) -> Iterator[Any]:
    """Yield the nested values of a mapping or list."""
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
