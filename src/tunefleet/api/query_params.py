"""Query parameters that many lists share, and the refusal of unknown ones."""

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

Limit = Annotated[int, Field(ge=1, le=1000, description="Maximum number of items per page.")]
Cursor = Annotated[str | None, Field(max_length=500, description="`next_cursor` of the previous page.")]


async def refuse_unknown(request: Request) -> None:
    """Refuse a query parameter that the route does not have: a misspelt filter would return everything.

    Raises:
        InputError: If there is one; the hint lists the valid parameters.
    """
    if not request.scope["query_string"]:
        return
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = query_names(route)
    for name in request.query_params:
        if name not in known:
            raise InputError(f"Unknown parameter {name!r} of {request.url.path}.", hint=_known(known))


def query_names(route: APIRoute) -> tuple[str, ...]:
    """Return the names of a route's query parameters, in alphabetical order."""
    not_query = (params.Path, params.Header, params.Cookie)
    fields = get_flat_params(route.dependant)
    return tuple(sorted(field.alias for field in fields if not isinstance(field.field_info, not_query)))


def one_of(values: Iterable[str]) -> AfterValidator:
    """Return a validator for a filter: comma-separated values, each one of these."""
    allowed = tuple(values)

    def check(value: str | None) -> str | None:
        for part in () if value is None else value.split(","):
            if part not in allowed:
                raise ValueError(f"{part!r} is not one of {', '.join(allowed)}")
        return value

    return AfterValidator(check)


def names(value: str | None) -> tuple[str, ...] | None:
    """Split a comma-separated list; `None` stays `None`."""
    return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())


def page(shape: type[Page[T]], items: Sequence[T], limit: int, cursor: str | None) -> Page[T]:
    """Return one page of a short list that a service returns completely; the cursor is a position.

    Raises:
        InputError: If the cursor is malformed.
    """
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal()):
        raise InputError(f"Invalid cursor: {cursor!r}.", hint="Use `next_cursor` of the previous page.")
    start = int(cursor or 0)
    end = start + limit
    return shape(items=tuple(items[start:end]), next_cursor=str(end) if end < len(items) else None)


def _known(parameters: Sequence[str]) -> str:
    return f"Valid parameters: {', '.join(parameters)}." if parameters else "The route has no parameters."
