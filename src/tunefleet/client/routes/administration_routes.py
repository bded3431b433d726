"""The server's routes of projects, usage, the audit log, notification channels and notifications as calls."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

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
from tunefleet.schemas.projects import AuditEntry, ProjectChange, ProjectCreate, ProjectView, UsageBy, UsageView
from tunefleet.spec.options.notify import OCCASIONS, Format, Occasion


def list_channels(*, limit: int = 100, cursor: str | None = None) -> Call[Page[ChannelView]]:
    """Return a page of your channels without their secrets; admins see all channels."""
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
    """Return a channel by id, or one of your own channels by name."""
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
    """Send a test message and return whether it was delivered."""
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


def list_projects(*, limit: int = 100, cursor: str | None = None) -> Call[Page[ProjectView]]:
    """Return a page of projects: your own, or all of them with an admin key of the default project."""
    return Call("GET", "/projects", model(Page[ProjectView]), {"limit": limit, "cursor": cursor})


def get_project(project: str) -> Call[ProjectView]:
    """Return a project with its quotas and current usage."""
    return Call("GET", path("projects", project), model(ProjectView))


def create_project(
    name: str,
    *,
    description: str | None = None,
    weight: float = 1.0,
    max_running: int | None = None,
    gpu_hours: float | None = None,
    storage_bytes: int | None = None,
) -> Call[ProjectView]:
    """Create a project; requires an admin key of the default project.

    Args:
        name: Lower-case letters, digits, dots, hyphens and underscores.
        weight: Fair-share weight among projects that compete for the fleet.
        max_running: Maximum number of concurrent tasks.
        gpu_hours: Maximum GPU hours per calendar month (UTC).
        storage_bytes: Maximum size of stored files in bytes.
    """
    body = ProjectCreate(
        name=name, description=description, weight=weight, max_running=max_running, gpu_hours=gpu_hours,
        storage_bytes=storage_bytes,
    )  # fmt: skip
    return Call("POST", "/projects", model(ProjectView), body=body, repeatable=False)


def change_project(project: str, **changes: Any) -> Call[ProjectView]:
    """Update a project: `description`, `weight`, `max_running`, `gpu_hours`, `storage_bytes`, `archived`.

    Omitted fields stay unchanged; `None` removes a quota.
    """
    body = ProjectChange(**changes)
    return Call("PATCH", path("projects", project), model(ProjectView), body=body)


def archive_project(project: str) -> Call[ProjectView]:
    """Archive a project: its keys are rejected and queued tasks stay queued, but running tasks finish."""
    return change_project(project, archived=True)


def restore_project(project: str) -> Call[ProjectView]:
    """Restore an archived project."""
    return change_project(project, archived=False)


def usage(*, project: str | None = None, since: datetime | None = None, by: UsageBy = "project") -> Call[UsageView]:
    """Return GPU time, energy and cost since a given time (default: this month), including running tasks."""
    return Call("GET", "/usage", model(UsageView), {"project": project, "since": _iso(since), "by": by})


def audit(
    *,
    actor: str | None = None,
    route: str | None = None,
    since: datetime | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Call[Page[AuditEntry]]:
    """Return a page of audit entries, newest first; requires an admin key."""
    params = {"actor": actor, "route": route, "since": _iso(since), "limit": limit, "cursor": cursor}
    return Call("GET", "/audit", model(Page[AuditEntry]), params)


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
