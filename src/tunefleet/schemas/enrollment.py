"""How a machine joins: invitations, and what their token is exchanged for."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from tunefleet.schemas.base import Body, Message, Name

WORKER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
WorkerName = Annotated[str, Field(pattern=WORKER_NAME)]
Tag = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^,\s\x00-\x1f\x7f]+$")]
DAY_S = 86_400.0


class InvitationCreate(Body):
    """A new invitation.

    Args:
        worker_id: The name that the worker will have; default: it chooses its own.
        tags: The tags that the worker will have; null: it chooses its own.
        owner: Whom the worker's key belongs to; default: the worker's name, or who invites.
        expires_s: How long the token is good, in seconds.
    """

    worker_id: WorkerName | None = None
    tags: tuple[Tag, ...] | None = Field(default=None, max_length=50)
    owner: Name | None = None
    expires_s: float = Field(default=3600.0, gt=0, le=30 * DAY_S)


class InvitationView(Message):
    """An invitation, without its token."""

    id: str
    state: Literal["open", "used", "expired", "withdrawn"]
    worker_id: str | None = None
    tags: tuple[str, ...] | None = None
    owner: str
    created_by: str
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None = None
    key_id: str | None = None


class InvitationCreated(InvitationView):
    """A new invitation; the token is shown this once, and `command` is what to type on the machine."""

    token: str
    url: str
    command: str


class JoinRequest(Body):
    """Exchange a token for a key that the joining machine has made up.

    Args:
        token: Of the invitation.
        secret_hash: SHA-256 of the key, in hexadecimal digits: the key itself stays on the machine.
        name: What the key is called, if the invitation names no worker; such as the machine's host name.
    """

    token: str = Field(min_length=1, max_length=200)
    secret_hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    name: Name | None = None


class JoinReply(Message):
    """The machine's key is good from now on.

    Args:
        owner: Whom it belongs to.
        worker_id: The name that the worker must have; null: any.
        tags: The tags that it must have; null: any.
    """

    key_id: str
    owner: str
    worker_id: str | None = None
    tags: tuple[str, ...] | None = None
