"""Pages of lists: limits, cursors, and the cut between two pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from tunefleet.errors import InputError

MAX_LIMIT: Final = 1000
_MAX_DIGITS: Final = 18


class _Numbered(Protocol):
    @property
    def seq(self) -> int: ...


R = TypeVar("R", bound=_Numbered)


def before(cursor: str | None) -> int | None:
    """Parse a list cursor.

    Raises:
        InputError: If it is not a cursor.
    """
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > _MAX_DIGITS:
        raise InputError(f"{cursor[:40]!r} is not a cursor.", hint="Use `next_cursor` of the previous page.")
    return int(cursor)


def bounded(limit: int) -> int:
    """Return the page size, within the allowed range."""
    return max(1, min(limit, MAX_LIMIT))


def split(rows: Sequence[R], limit: int) -> tuple[Sequence[R], str | None]:
    """Return the rows of a page and the cursor of the next one."""
    page = rows[:limit]
    return page, str(page[-1].seq) if len(rows) > limit else None
