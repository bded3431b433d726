"""Query parameters: those that many lists share, and the refusal of those that a route does not know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, TypeVar

from fastapi import Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from pydantic import AfterValidator, Field

from tunefleet.errors import InputError
from tunefleet.schemas.api import Page

T = TypeVar("T")

Limit = Annotated[int, Field(ge=1, le=1000, description="Items a page.")]
Cursor = Annotated[str | None, Field(max_length=500, description="`next_cursor` of the page before.")]


async def refuse_unknown(request: Request) -> None:
    """Refuse a query parameter that the route does not have: a misspelt filter would return everything.

    Raises:
        InputError: If there is one; it names those that the route has.
    """
    if not request.scope["query_string"]:
        return
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = query_names(route)
    for name in request.query_params:
        if name not in known:
            raise InputError(f"{request.url.path} has no parameter {name!r}.", hint=_known(known))


def query_names(route: APIRoute) -> tuple[str, ...]:
    """Return the names of the query parameters that a route takes, in alphabetical order."""
    elsewhere = (params.Path, params.Header, params.Cookie)
    fields = get_flat_params(route.dependant)
    return tuple(sorted(field.alias for field in fields if not isinstance(field.field_info, elsewhere)))


def one_of(values: Iterable[str]) -> AfterValidator:
    """Make a check of a filter that takes several values separated by commas, each one of these."""
    allowed = tuple(values)

    def check(value: str | None) -> str | None:
        for part in () if value is None else value.split(","):
            if part not in allowed:
                raise ValueError(f"{part!r} is not one of {', '.join(allowed)}")
        return value

    return AfterValidator(check)


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


def _known(parameters: Sequence[str]) -> str:
    return f"It has: {', '.join(parameters)}." if parameters else "It takes none."
