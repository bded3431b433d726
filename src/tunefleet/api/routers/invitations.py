"""Invitations, and the one route that a machine without a key can call to join."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from fastapi import Query, Request

from tunefleet.api.auth import Admin, CoreDep, address_of
from tunefleet.api.query_params import Cursor, Limit, names, one_of, page
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.workers import enrollment
from tunefleet.schemas.api import Page
from tunefleet.schemas.enrollment import InvitationCreate, InvitationCreated, InvitationView, JoinReply, JoinRequest

router = api_router(tags=["workers"])

_PUBLIC: Final[dict[str, Any]] = {"security": []}
_STATES: Final = get_args(Literal["open", "used", "expired", "withdrawn"])
States = Annotated[str | None, one_of(_STATES), Query(description=f"Comma-separated: {', '.join(_STATES)}.")]


@router.post("/invitations", status_code=201)
async def create_invitation(
    request: Request, core: CoreDep, who: Admin, invitation: InvitationCreate
) -> InvitationCreated:
    """Create an invitation: a single-use token with which one worker joins. The token is shown only once."""
    url = (core.settings.public_base_url or str(request.base_url)).rstrip("/")
    return await enrollment.create(core, who, invitation, url)


@router.get("/invitations")
async def list_invitations(
    core: CoreDep, who: Admin, limit: Limit = 100, cursor: Cursor = None, state: States = None
) -> Page[InvitationView]:
    """List invitations, newest first, without their tokens."""
    wanted = names(state)
    found = [each for each in await enrollment.list_(core, who) if wanted is None or each.state in wanted]
    return page(Page[InvitationView], found, limit, cursor)


@router.delete("/invitations/{invitation_id}", status_code=204)
async def withdraw_invitation(core: CoreDep, who: Admin, invitation_id: str) -> None:
    """Withdraw an unused invitation. Its token becomes invalid."""
    await enrollment.withdraw(core, who, invitation_id)


@router.post("/join", openapi_extra=_PUBLIC)
async def join(request: Request, core: CoreDep, joining: JoinRequest) -> JoinReply:
    """Exchange an invitation's token for a worker key. Repeating the request returns the same response."""
    return await enrollment.join(core, address_of(request), joining)
