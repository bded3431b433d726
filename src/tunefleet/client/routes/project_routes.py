"""The server's routes of projects, usage and the audit log as calls."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tunefleet.client.call import Call, model, path
from tunefleet.schemas.api import Page
from tunefleet.schemas.projects import AuditEntry, ProjectChange, ProjectCreate, ProjectView, UsageBy, UsageView


def list_projects(*, limit: int = 100, cursor: str | None = None) -> Call[Page[ProjectView]]:
    """Return a page of projects: your own, or all with an admin key of the default project."""
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
    """Archive a project: its keys are refused and its tasks stay queued; running tasks finish."""
    return change_project(project, archived=True)


def restore_project(project: str) -> Call[ProjectView]:
    """Restore an archived project."""
    return change_project(project, archived=False)


def usage(*, project: str | None = None, since: datetime | None = None, by: UsageBy = "project") -> Call[UsageView]:
    """Return GPU time, energy and cost since a time (default: this calendar month), including running tasks."""
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
