"""Query parameters that many lists share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import Field

from tunefleet.errors import InputError
from tunefleet.wire.api import Page

T = TypeVar("T")

Limit = Annotated[int, Field(ge=1, le=1000, description="Items a page.")]
Cursor = Annotated[str | None, Field(max_length=500, description="`next_cursor` of the page before.")]


def names(value: str | None) -> tuple[str, ...] | None:
    """Split a comma-separated list; `None` stays."""
    return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())


def page(shape: type[Page[T]], items: Sequence[T], limit: int, cursor: str | None) -> Page[T]:
    """Cut a short list that a service returns whole; the cursor is a position.

    Raises:
        InputError: If the cursor is not one of ours.
    """
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal()):
        raise InputError(f"{cursor!r} is not a cursor.", hint="Use `next_cursor` of the page before.")
    start = int(cursor or 0)
    end = start + limit
    return shape(items=tuple(items[start:end]), next_cursor=str(end) if end < len(items) else None)
