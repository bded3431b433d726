"""The server's routes of projects, use and the audit log as calls."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tunefleet.client.call import Call, model, path
from tunefleet.schemas.api import Page
from tunefleet.schemas.projects import AuditEntry, ProjectChange, ProjectCreate, ProjectView, UsageBy, UsageView


def list_projects(*, limit: int = 100, cursor: str | None = None) -> Call[Page[ProjectView]]:
    """Return a page of projects: your own, or all with an admin key of the default one."""
    return Call("GET", "/projects", model(Page[ProjectView]), {"limit": limit, "cursor": cursor})


def get_project(project: str) -> Call[ProjectView]:
    """Return a project, its quotas, and what it uses of them."""
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
    """Create a project; takes an admin key of the default one.

    Args:
        name: Small letters, digits, dots, dashes and underlines.
        weight: Its part of a fleet that several projects want.
        max_running: Tasks that run at once, at most.
        gpu_hours: GPU hours a calendar month (UTC), at most.
        storage_bytes: Bytes of stored files, at most.
    """
    body = ProjectCreate(
        name=name, description=description, weight=weight, max_running=max_running, gpu_hours=gpu_hours,
        storage_bytes=storage_bytes,
    )  # fmt: skip
    return Call("POST", "/projects", model(ProjectView), body=body, repeatable=False)


def change_project(project: str, **changes: Any) -> Call[ProjectView]:
    """Change a project: `description`, `weight`, `max_running`, `gpu_hours`, `storage_bytes`, `archived`.

    What is not named stays as it is; `None` takes a quota away.
    """
    body = ProjectChange(**changes)
    return Call("PATCH", path("projects", project), model(ProjectView), body=body)


def archive_project(project: str) -> Call[ProjectView]:
    """Let a project rest: its keys are refused and its tasks wait; what runs goes on to its end."""
    return change_project(project, archived=True)


def restore_project(project: str) -> Call[ProjectView]:
    """Open an archived project again."""
    return change_project(project, archived=False)


def usage(*, project: str | None = None, since: datetime | None = None, by: UsageBy = "project") -> Call[UsageView]:
    """Return what was used since a time (default: this calendar month), with what runs: GPU time, energy, cost."""
    return Call("GET", "/usage", model(UsageView), {"project": project, "since": _iso(since), "by": by})


def audit(
    *,
    actor: str | None = None,
    route: str | None = None,
    since: datetime | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Call[Page[AuditEntry]]:
    """Return a page of who changed what, newest first; takes an admin key."""
    params = {"actor": actor, "route": route, "since": _iso(since), "limit": limit, "cursor": cursor}
    return Call("GET", "/audit", model(Page[AuditEntry]), params)


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
