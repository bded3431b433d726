"""Projects, usage and the audit log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, get_args

from fastapi import Query

from tunefleet.api.auth import Admin, CoreDep, Reader
from tunefleet.api.query_params import Cursor, Limit, page
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.access import audit_log, projects
from tunefleet.orchestrator.fleet import usage
from tunefleet.schemas.api import Page
from tunefleet.schemas.projects import AuditEntry, ProjectChange, ProjectCreate, ProjectView, UsageBy, UsageView

router = api_router(tags=["projects"])

Since = Annotated[
    datetime | None, Query(description="Start time. Without a time zone: UTC.", examples=["2026-11-01T00:00:00Z"])
]
By = Annotated[UsageBy, Query(description=f"Group by: {', '.join(get_args(UsageBy))}.")]


@router.get("/projects")
async def list_projects(core: CoreDep, who: Reader, limit: Limit = 100, cursor: Cursor = None) -> Page[ProjectView]:
    """List projects with their quotas and usage: your own, or all with an admin key of the default project."""
    return page(Page[ProjectView], await projects.list_(core, who), limit, cursor)


@router.post("/projects", status_code=201)
async def create_project(core: CoreDep, who: Admin, project: ProjectCreate) -> ProjectView:
    """Create a project. Requires an admin key of the default project."""
    return await projects.create(core, who, project)


@router.get("/projects/{project}")
async def show_project(core: CoreDep, who: Reader, project: str) -> ProjectView:
    """Retrieve a project with its quotas and current usage."""
    return await projects.get(core, who, project)


@router.patch("/projects/{project}")
async def change_project(core: CoreDep, who: Admin, project: str, change: ProjectChange) -> ProjectView:
    """Update a project's weight or quotas, or archive it. Requires an admin key of the default project."""
    return await projects.change(core, who, project, change)


@router.get("/usage")
async def show_usage(
    core: CoreDep,
    who: Reader,
    project: Annotated[
        str | None, Query(description="Id of a project. Default: all projects that you can see.")
    ] = None,
    since: Since = None,
    by: By = "project",
) -> UsageView:
    """Retrieve GPU time, energy and cost since a time (default: this calendar month), including running tasks."""
    return await usage.report(core, who, project=project, since=_unix(since), by=by)


@router.get("/audit")
async def list_audit(
    core: CoreDep,
    who: Admin,
    limit: Limit = 100,
    cursor: Cursor = None,
    actor: Annotated[str | None, Query(description="Owner, or id of a key.")] = None,
    route: Annotated[str | None, Query(description="Text that the route contains.")] = None,
    since: Since = None,
) -> Page[AuditEntry]:
    """List audit entries, newest first: of your project's keys, or of all with an admin key of the default project."""
    return await audit_log.list_(core, who, limit=limit, cursor=cursor, owner=actor, route=route, since=_unix(since))


def _unix(at: datetime | None) -> float | None:
    if at is None:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
