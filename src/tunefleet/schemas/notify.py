"""Channels and notifications; part of the HTTP API under `/api/v1`, and what a webhook gets."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from tunefleet.schemas.base import Body, Message
from tunefleet.spec.options.notify import OCCASIONS, Format, Occasion

NoticeState = Literal["waiting", "sent", "failed"]
Happened = Occasion | Literal["published"]
"""What is told: what users choose from, and that a federation has published a version, which its workers ask for."""


class ChannelCreate(Body):
    """A new channel of whoever makes it.

    Args:
        name: What documents call it.
        to: An `https://…` address, or `mailto:` and an e-mail address.
        on: What is told there; default: everything.
        format: How; default: what the address takes, else `webhook`.
        secret: Signs what goes to a webhook; default: a new one. Starts with `whsec_`, then base64.
        everyone: Tell of the tasks of all users; takes an admin key.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", examples=["phone"])
    to: str = Field(min_length=1, max_length=2000, examples=["https://example.org/hook"])
    on: tuple[Occasion, ...] = Field(default=OCCASIONS, min_length=1, max_length=len(OCCASIONS))
    format: Format | None = None
    secret: str | None = Field(default=None, pattern=r"^whsec_[A-Za-z0-9+/]{32,256}={0,2}$")
    everyone: bool = False


class ChannelChange(Body):
    """What is to change of a channel; what is left out stays."""

    to: str | None = Field(default=None, min_length=1, max_length=2000)
    on: tuple[Occasion, ...] | None = Field(default=None, min_length=1, max_length=len(OCCASIONS))
    format: Format | None = None
    everyone: bool | None = None
    enabled: bool | None = None


class ChannelView(Message):
    """A channel, without its secrets.

    Args:
        to: Where it leads; of a web address only the host, for the rest of it may be a secret.
        signed: Whether what goes there is signed.
    """

    id: str
    name: str
    owner: str
    to: str
    format: Format
    on: tuple[Occasion, ...]
    signed: bool
    everyone: bool
    enabled: bool
    created_at: datetime


class ChannelCreated(ChannelView):
    """A new channel; the secret that signs is shown this once."""

    secret: str | None = None


class ChannelTestReply(Message):
    """How the test of a channel went: `sent`, or why not."""

    sent: bool
    error: str | None = None


class NotificationView(Message):
    """A notification, and what became of it.

    Args:
        id: The same at each try: who gets it twice knows it by that.
        channel_id: The channel that it goes to, or `FEDERATION/WORKER`; null if the document of its task names the
            address.
        channel: That channel's name; null if there is none, or it was removed.
        error: Why the last try failed.
        next_try_at: When it is tried again, while it waits.
    """

    id: str
    owner: str
    event: Happened
    event_id: int
    task_id: str | None
    title: str
    channel_id: str | None
    channel: str | None
    to: str
    format: Format
    state: NoticeState
    tries: int
    error: str | None
    created_at: datetime
    next_try_at: datetime | None
    sent_at: datetime | None


class ToldTask(Message):
    """The task that a notification is about.

    Args:
        status: What it is now.
        runtime_s: How long its last attempt ran, in seconds.
        loss: The last one that it logged, if it trained.
    """

    id: str
    name: str
    kind: str
    owner: str
    status: str
    reason: str | None = None
    error: str | None = None
    worker_id: str | None = None
    attempts: int = 0
    runtime_s: float | None = None
    loss: float | None = None
    step: int | None = None


class ToldWorkflow(Message):
    """The workflow of that task."""

    id: str
    name: str


class ToldVersion(Message):
    """The version of a federation's adapter that a callback tells of.

    Args:
        number: The same as a whole number.
        worker: Who is told.
        round: That made it; null after a rollback.
        equals: The version that a rollback has brought back.
        sha256: Of `adapter_model.safetensors`.
        archive_sha256: Of the `.tar.gz`; null until somebody has asked for it.
    """

    id: str
    number: int
    name: str
    worker: str | None = None
    version: int
    round: int | None
    equals: int | None
    sha256: str
    archive_sha256: str | None
    contributors: tuple[str, ...]


class ToldCampaign(Message):
    """The campaign that a notification is about.

    Args:
        version: Of the model that was promoted.
    """

    id: str
    name: str
    owner: str
    cycle: int | None = None
    step: str | None = None
    version: int | None = None


class WebhookPayload(Message):
    """What a webhook gets.

    Args:
        id: Of the notification; the same when it comes twice.
        title: In a few words.
        worker_id: The worker that it is about, where it is about none of the tasks.
        federation: What it published, where it is about that.
        campaign: The campaign, where it is about one.
        url: Where to read more; null without `PUBLIC_BASE_URL`.
        command: How to look further on the command line.
    """

    id: str
    event: Happened
    at: datetime
    title: str
    text: str
    task: ToldTask | None = None
    workflow: ToldWorkflow | None = None
    worker_id: str | None = None
    federation: ToldVersion | None = None
    campaign: ToldCampaign | None = None
    url: str | None = None
    command: str
