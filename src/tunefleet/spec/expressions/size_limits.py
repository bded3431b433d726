"""How much the results of other tasks may bring into one spec: counted before anything is built."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.errors import ReferenceFault
from tunefleet.spec.expressions.budget import inside, own

MAX_RESOLVED_CHARACTERS: Final = 16_000_000
MAX_RESOLVED_VALUES: Final = 500_000
"""Of one task: its spec is made while everything else that is stored waits."""
# Of one value: with the levels of the spec around it, it stays below the 200 that a worker's JSON parser reads.
MAX_RESOLVED_LEVELS: Final = 100


class Room:
    """What may still be put into a spec.

    Args:
        characters: Of texts and keys.
        values: Texts, numbers, lists and so on, and the entries of lists that are looked through for them.
        of: Whose room it is, for the message.
    """

    def __init__(
        self, characters: int = MAX_RESOLVED_CHARACTERS, values: int = MAX_RESOLVED_VALUES, of: str = "one task"
    ) -> None:
        self._most = f"{characters:,} characters and {values:,} values"
        self._of = of
        self.characters = characters
        self.values = values

    @property
    def is_spent(self) -> bool:
        """Whether more was wanted than there was."""
        return self.characters < 0 or self.values < 0

    def take(self, what: str, *, characters: int = 0, values: int = 0) -> None:
        """Count something that is about to be made.

        Args:
            what: What takes it, such as a reference, for the message.
            characters: How many it has.
            values: How many it has.

        Raises:
            ReferenceFault: If there is no room for it.
        """
        self.characters -= characters
        self.values -= values
        if self.is_spent:
            raise ReferenceFault(
                f"{what} is too much: what references and templates make has room for {self._most} in {self._of}.",
                hint="Name a part of the result, such as one field of it, or spread the work over several tasks; what "
                "is long belongs into a file that the task before leaves and `data` names.",
            )

    def take_value(self, what: str, value: Any) -> None:
        """Count a value and everything in it; looks no further than there is room.

        Raises:
            ReferenceFault: If there is no room for it, or it is nested too deeply.
        """
        ahead = [(value, 0)]
        while ahead:
            each, level = ahead.pop()
            if level > MAX_RESOLVED_LEVELS:
                raise ReferenceFault(
                    f"{what} is nested more than {MAX_RESOLVED_LEVELS} levels deep.",
                    hint="Name a part of the result, such as one field of it.",
                )
            size = own(each)
            self.take(what, characters=size.characters, values=size.values)
            ahead.extend((part, level + 1) for part in inside(each))
