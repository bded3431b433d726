"""The server's routes of channels and notifications as calls."""

from __future__ import annotations

from collections.abc import Iterable

from tunefleet.client.call import Call, model, nothing, path
from tunefleet.schemas.api import Page
from tunefleet.schemas.notify import (
    ChannelChange,
    ChannelCreate,
    ChannelCreated,
    ChannelTestReply,
    ChannelView,
    NotificationView,
)
from tunefleet.spec.options.notify import OCCASIONS, Format, Occasion


def list_channels(*, limit: int = 100, cursor: str | None = None) -> Call[Page[ChannelView]]:
    """Return a page of your channels, without their secrets; admins see everyone's."""
    return Call("GET", "/notifications/channels", model(Page[ChannelView]), {"limit": limit, "cursor": cursor})


def create_channel(
    name: str,
    to: str,
    *,
    on: Iterable[Occasion] = OCCASIONS,
    format: Format | None = None,
    secret: str | None = None,
    everyone: bool = False,
) -> Call[ChannelCreated]:
    """Create a channel; only this response contains the secret that signs webhook requests.

    Args:
        name: Name of the channel in workflow files.
        to: An `https://…` URL, or `mailto:` and an e-mail address.
        on: Events to notify about.
        format: Message format. Default: the format of the address, else `webhook`.
        secret: Signs webhook requests. Default: a new secret.
        everyone: Notify about the tasks of all users; requires an admin key.
    """
    body = ChannelCreate(name=name, to=to, on=tuple(on), format=format, secret=secret, everyone=everyone)
    return Call("POST", "/notifications/channels", model(ChannelCreated), body=body, repeatable=False)


def get_channel(channel: str) -> Call[ChannelView]:
    """Return a channel by its id, or one of your channels by its name."""
    return Call("GET", path("notifications", "channels", channel), model(ChannelView))


def change_channel(
    channel: str,
    *,
    to: str | None = None,
    on: Iterable[Occasion] | None = None,
    format: Format | None = None,
    everyone: bool | None = None,
    enabled: bool | None = None,
) -> Call[ChannelView]:
    """Update a channel; omitted fields stay unchanged, and pending notifications go to the new address."""
    wanted = None if on is None else tuple(on)
    body = ChannelChange(to=to, on=wanted, format=format, everyone=everyone, enabled=enabled)
    return Call("PATCH", path("notifications", "channels", channel), model(ChannelView), body=body)


def remove_channel(channel: str) -> Call[None]:
    """Delete a channel; its pending notifications are dropped."""
    return Call("DELETE", path("notifications", "channels", channel), nothing, repeatable=False)


def test_channel(channel: str) -> Call[ChannelTestReply]:
    """Send a test message, and return whether it was delivered."""
    return Call("POST", path("notifications", "channels", channel, "test"), model(ChannelTestReply), repeatable=False)


def list_notifications(
    *,
    limit: int = 100,
    cursor: str | None = None,
    task_id: str | None = None,
    channel: str | None = None,
    state: str | None = None,
) -> Call[Page[NotificationView]]:
    """Return a page of your notifications, sent and pending, newest first."""
    params = {"limit": limit, "cursor": cursor, "task_id": task_id, "channel": channel, "state": state}
    return Call("GET", "/notifications", model(Page[NotificationView]), params)
