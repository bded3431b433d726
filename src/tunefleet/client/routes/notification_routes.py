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
    """Return a page of your channels, without their secrets; an admin sees everybody's."""
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
    """Create a channel; the secret that signs what goes to a webhook is in this answer and nowhere else.

    Args:
        name: What documents call it.
        to: An `https://…` address, or `mailto:` and an e-mail address.
        on: What is told there.
        format: How; default: what the address takes, else `webhook`.
        secret: Signs what goes to a webhook; default: a new one.
        everyone: Tell of the tasks of all users; takes an admin key.
    """
    body = ChannelCreate(name=name, to=to, on=tuple(on), format=format, secret=secret, everyone=everyone)
    return Call("POST", "/notifications/channels", model(ChannelCreated), body=body, repeatable=False)


def get_channel(channel: str) -> Call[ChannelView]:
    """Return a channel, by its id or a name of yours."""
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
    """Change a channel; what is left out stays, and what waits goes to a new address."""
    wanted = None if on is None else tuple(on)
    body = ChannelChange(to=to, on=wanted, format=format, everyone=everyone, enabled=enabled)
    return Call("PATCH", path("notifications", "channels", channel), model(ChannelView), body=body)


def remove_channel(channel: str) -> Call[None]:
    """Remove a channel; what waits for it is given up."""
    return Call("DELETE", path("notifications", "channels", channel), nothing, repeatable=False)


def test_channel(channel: str) -> Call[ChannelTestReply]:
    """Send a message that says that it is a test, and return how it went."""
    return Call("POST", path("notifications", "channels", channel, "test"), model(ChannelTestReply), repeatable=False)


def list_notifications(
    *,
    limit: int = 100,
    cursor: str | None = None,
    task_id: str | None = None,
    channel: str | None = None,
    state: str | None = None,
) -> Call[Page[NotificationView]]:
    """Return a page of what you were told or are to be told, newest first."""
    params = {"limit": limit, "cursor": cursor, "task_id": task_id, "channel": channel, "state": state}
    return Call("GET", "/notifications", model(Page[NotificationView]), params)
