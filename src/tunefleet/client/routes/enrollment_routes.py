"""Routes of invitations, and of joining, as calls."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.client.call import Call, model, nothing, path
from tunefleet.schemas.api import Page
from tunefleet.schemas.enrollment import InvitationCreate, InvitationCreated, InvitationView, JoinReply, JoinRequest


def invite(
    worker_id: str | None = None,
    *,
    tags: Sequence[str] | None = None,
    owner: str | None = None,
    expires_s: float = 3600.0,
) -> Call[InvitationCreated]:
    """Invite a machine to join as a worker, once; the token is in this answer and nowhere else."""
    body = InvitationCreate(
        worker_id=worker_id, tags=None if tags is None else tuple(tags), owner=owner, expires_s=expires_s
    )
    return Call("POST", "/invitations", model(InvitationCreated), body=body, repeatable=False)


def list_invitations(*, limit: int = 100, cursor: str | None = None) -> Call[Page[InvitationView]]:
    """Return a page of invitations, newest first, without their tokens."""
    return Call("GET", "/invitations", model(Page[InvitationView]), {"limit": limit, "cursor": cursor})


def withdraw(invitation_id: str) -> Call[None]:
    """Withdraw an invitation that nobody has used."""
    return Call("DELETE", path("invitations", invitation_id), nothing)


def join(request: JoinRequest) -> Call[JoinReply]:
    """Exchange an invitation's token for a worker's key; asking again does no harm."""
    return Call("POST", "/join", model(JoinReply), body=request)
