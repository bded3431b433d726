"""Pages of lists: a cursor is where the page before ended, so that new rows shift nothing."""

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
    """Read a cursor.

    Raises:
        InputError: If it is not one of ours.
    """
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > _MAX_DIGITS:
        raise InputError(f"{cursor[:40]!r} is not a cursor.", hint="Use `next_cursor` of the page before.")
    return int(cursor)


def bounded(limit: int) -> int:
    """Return how many rows to give."""
    return max(1, min(limit, MAX_LIMIT))


def split(rows: Sequence[R], limit: int) -> tuple[Sequence[R], str | None]:
    """Return the rows of a page and the cursor of the next.

    Args:
        rows: One more than the limit, if there is one more.
        limit: How many belong to the page.
    """
    page = rows[:limit]
    return page, str(page[-1].seq) if len(rows) > limit else None
