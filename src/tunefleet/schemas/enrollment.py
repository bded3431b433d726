"""Enrollment of machines: invitations, and the exchange of their token for a key."""

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
        worker_id: Name of the worker; null: chosen by the worker.
        tags: Tags of the worker; null: chosen by the worker.
        owner: Owner of the worker's key; default: the worker's name, or the inviting user.
        expires_s: Validity of the token, in seconds.
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
    """A new invitation; the token is shown only once, and `command` is the command to run on the machine."""

    token: str
    url: str
    command: str


class JoinRequest(Body):
    """Exchange a token for a key that the joining machine has generated.

    Args:
        token: Token of the invitation.
        secret_hash: SHA-256 of the key in hexadecimal; the key itself never leaves the machine.
        name: Name of the key if the invitation names no worker, such as the host name.
    """

    token: str = Field(min_length=1, max_length=200)
    secret_hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    name: Name | None = None


class JoinReply(Message):
    """The machine's key is now valid.

    Args:
        owner: Owner of the key.
        worker_id: Required name of the worker; null: any.
        tags: Required tags of the worker; null: any.
    """

    key_id: str
    owner: str
    worker_id: str | None = None
    tags: tuple[str, ...] | None = None
