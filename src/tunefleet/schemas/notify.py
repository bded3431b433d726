"""Channels and notifications; part of the HTTP API under `/api/v1`, and the payload of webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from tunefleet.schemas.base import Body, Message
from tunefleet.spec.options.notify import OCCASIONS, Format, Occasion

NoticeState = Literal["waiting", "sent", "failed"]
# The events that users can select, and `published`: a new federation version, to which its workers subscribe.
Happened = Occasion | Literal["published"]


class ChannelCreate(Body):
    """A new channel of the caller.

    Args:
        name: Name used in workflow files.
        to: An `https://…` URL, or `mailto:` and an e-mail address.
        on: Events to send; default: all.
        format: Message format; default: the format of the host, else `webhook`.
        secret: Secret that signs webhook requests: `whsec_` and base64; default: a new one.
        everyone: Notify about the tasks of all users; requires an admin key.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", examples=["phone"])
    to: str = Field(min_length=1, max_length=2000, examples=["https://example.org/hook"])
    on: tuple[Occasion, ...] = Field(default=OCCASIONS, min_length=1, max_length=len(OCCASIONS))
    format: Format | None = None
    secret: str | None = Field(default=None, pattern=r"^whsec_[A-Za-z0-9+/]{32,256}={0,2}$")
    everyone: bool = False


class ChannelChange(Body):
    """Changes to a channel; omitted fields do not change."""

    to: str | None = Field(default=None, min_length=1, max_length=2000)
    on: tuple[Occasion, ...] | None = Field(default=None, min_length=1, max_length=len(OCCASIONS))
    format: Format | None = None
    everyone: bool | None = None
    enabled: bool | None = None


class ChannelView(Message):
    """A channel, without its secrets.

    Args:
        to: The address; for a URL only the host, since the rest may be secret.
        signed: Whether requests are signed.
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
    """A new channel; the signing secret is shown only once."""

    secret: str | None = None


class ChannelTestReply(Message):
    """Result of a channel test: `sent`, or the error."""

    sent: bool
    error: str | None = None


class NotificationView(Message):
    """A notification and its delivery state.

    Args:
        id: The same for each attempt, so that receivers can detect duplicates.
        channel_id: Its channel, or `FEDERATION/WORKER`; null if the address is set in the
            workflow file.
        channel: Name of the channel; null if there is none, or it was removed.
        error: Error of the last attempt.
        next_try_at: Time of the next attempt, while it is waiting.
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
        status: Current status.
        runtime_s: Duration of its last attempt, in seconds.
        loss: The last logged loss of a training task.
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
    """The version of a federation's adapter in a callback.

    Args:
        number: Numeric id of the federation.
        worker: The notified worker.
        round: The round that created it; null after a rollback.
        equals: The version that a rollback has restored.
        sha256: Digest of `adapter_model.safetensors`.
        archive_sha256: Digest of the `.tar.gz`, which is created on first request; null until then.
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
        version: Version of the promoted model.
    """

    id: str
    name: str
    owner: str
    cycle: int | None = None
    step: str | None = None
    version: int | None = None


class WebhookPayload(Message):
    """Payload of a webhook.

    Args:
        id: Id of the notification; the same in repeated deliveries.
        title: Short title.
        worker_id: The worker, if the notification is not about a task.
        federation: The published version, if it is about one.
        campaign: The campaign, if it is about one.
        url: Link to the web UI; null without `TUNEFLEET_PUBLIC_URL`.
        command: CLI command for more details.
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
