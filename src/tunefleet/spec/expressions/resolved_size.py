"""Size limit for values from other tasks in one spec; counted before anything is built."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.errors import ReferenceFault
from tunefleet.spec.expressions.budget import inside, own

# Per task. A spec is resolved while the store's single writer is held, so its size bounds how long others wait.
MAX_RESOLVED_CHARACTERS: Final = 16_000_000
MAX_RESOLVED_VALUES: Final = 500_000
# Per value; with the levels of the spec around it, it stays below the 200 levels that a worker's JSON parser reads.
MAX_RESOLVED_LEVELS: Final = 100


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
