"""Size limits: of all tasks of a workflow together, and of the values from other tasks in one spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tunefleet.errors import ReferenceFault

MAX_MERGED_VALUES: Final = 250_000
MAX_MERGED_CHARACTERS: Final = 32_000_000
MAX_PLACEHOLDERS: Final = 50_000
SIZE_HINT: Final = "move long data to a file that `data` refers to, or submit the tasks in several workflows"
# Per task. A spec is resolved while the store's single writer is held, so its size bounds how long others wait.
MAX_RESOLVED_CHARACTERS: Final = 16_000_000
MAX_RESOLVED_VALUES: Final = 500_000
# Per value; with the levels of the spec around it, it stays below the 200 levels that a worker's JSON parser reads.
MAX_RESOLVED_LEVELS: Final = 100


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


class SizeBudget:
    """The remaining size budget of a spec.

    Args:
        characters: Characters of strings and keys.
        values: Strings, numbers, lists and so on, and visited list entries.
        of: What the budget applies to, for messages.
    """

    def __init__(
        self, characters: int = MAX_RESOLVED_CHARACTERS, values: int = MAX_RESOLVED_VALUES, of: str = "one task"
    ) -> None:
        self._limit = f"{characters:,} characters and {values:,} values"
        self._of = of
        self.characters = characters
        self.values = values

    @property
    def is_spent(self) -> bool:
        """Whether the budget is exceeded."""
        return self.characters < 0 or self.values < 0

    def take(self, what: str, *, characters: int = 0, values: int = 0) -> None:
        """Charge something that is about to be built.

        Args:
            what: What is charged, such as a reference, for messages.
            characters: Number of characters.
            values: Number of values.

        Raises:
            ReferenceFault: If it exceeds the budget.
        """
        self.characters -= characters
        self.values -= values
        if self.is_spent:
            raise ReferenceFault(
                f"{what} is too large: references and templates may produce at most {self._limit} in {self._of}.",
                hint="Refer to a part of the result, such as one field, or split the work into several tasks; pass "
                "large data as a file of the upstream task that `data` refers to.",
            )

    def take_value(self, what: str, value: Any) -> None:
        """Charge a value with all nested values; stops as soon as the budget is exceeded.

        Raises:
            ReferenceFault: If it exceeds the budget or is nested too deeply.
        """
        stack = [(value, 0)]
        while stack:
            each, level = stack.pop()
            if level > MAX_RESOLVED_LEVELS:
                raise ReferenceFault(
                    f"{what} is nested more than {MAX_RESOLVED_LEVELS} levels deep.",
                    hint="Refer to a part of the result, such as one field.",
                )
            size = own(each)
            self.take(what, characters=size.characters, values=size.values)
            stack.extend((part, level + 1) for part in inside(each))
