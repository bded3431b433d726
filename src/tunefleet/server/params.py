"""Query parameters that many lists share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Limit = Annotated[int, Field(ge=1, le=1000, description="Items a page.")]
Cursor = Annotated[str | None, Field(max_length=500, description="`next_cursor` of the page before.")]


def names(value: str | None) -> tuple[str, ...] | None:
    """Split a comma-separated list; `None` stays."""
    return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())
