"""Routers, one file per resource; each handler authenticates, calls one service and returns its view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Depends

from tunefleet.api.query_params import refuse_unknown

API_PREFIX: Final = "/api/v1"


def api_router(*, prefix: str = "", tags: Sequence[str] = ()) -> APIRouter:
    """Return a router below `/api/v1` whose routes refuse unknown query parameters."""
    return APIRouter(prefix=API_PREFIX + prefix, tags=[*tags], dependencies=[Depends(refuse_unknown)])
