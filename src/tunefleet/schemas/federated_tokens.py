"""Bodies of the routes of a federation's token."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from tunefleet.schemas.base import Body, Message


class FederationToken(Message):
    """The token of a federation, which is good for it alone.

    Args:
        worker: The only name that it is good for; null for the one that all workers may have.
        old_until: Until when the one that it has replaced is good as well; null if it is not.
    """

    id: str
    number: int
    token: str
    worker: str | None = None
    old_until: datetime | None = None


class TokenReplace(Body):
    """Body of `POST /api/v1/federations/{id}/token`.

    Args:
        old_for_s: How long the token that is replaced stays good, for workers that have it; at most a week.
    """

    old_for_s: Annotated[float, Field(ge=0, le=7 * 86_400.0)] = 0.0
