"""Projects, what was used, and the audit log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, get_args

from fastapi import Query

from tunefleet.api.auth import Admin, CoreDep, Reader
from tunefleet.api.query_params import Cursor, Limit, page
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.access import audit_log, projects, usage
from tunefleet.schemas.api import Page
from tunefleet.schemas.projects import AuditEntry, ProjectChange, ProjectCreate, ProjectView, UsageBy, UsageView

router = api_router(tags=["projects"])

Since = Annotated[
    datetime | None, Query(description="From this time on; without a zone: UTC.", examples=["2026-11-01T00:00:00Z"])
]
By = Annotated[UsageBy, Query(description=f"The headings: {', '.join(get_args(UsageBy))}.")]


@router.get("/projects")
async def list_projects(core: CoreDep, who: Reader, limit: Limit = 100, cursor: Cursor = None) -> Page[ProjectView]:
    """List projects with their quotas and what they use: your own, or all with an admin key of the default one."""
    return page(Page[ProjectView], await projects.list_(core, who), limit, cursor)


@router.post("/projects", status_code=201)
async def create_project(core: CoreDep, who: Admin, project: ProjectCreate) -> ProjectView:
    """Create a project; takes an admin key of the default one."""
    return await projects.create(core, who, project)


@router.get("/projects/{project}")
async def show_project(core: CoreDep, who: Reader, project: str) -> ProjectView:
    """Show a project, its quotas, and what it uses of them."""
    return await projects.get(core, who, project)


@router.patch("/projects/{project}")
async def change_project(core: CoreDep, who: Admin, project: str, change: ProjectChange) -> ProjectView:
    """Change a project's weight or quotas, or archive it; takes an admin key of the default one."""
    return await projects.change(core, who, project, change)


@router.get("/usage")
async def show_usage(
    core: CoreDep,
    who: Reader,
    project: Annotated[str | None, Query(description="Of this project; default: all that you may see.")] = None,
    since: Since = None,
    by: By = "project",
) -> UsageView:
    """Show what was used since a time (default: this calendar month), with what runs: GPU time, energy, cost."""
    return await usage.report(core, who, project=project, since=_unix(since), by=by)


@router.get("/audit")
async def list_audit(
    core: CoreDep,
    who: Admin,
    limit: Limit = 100,
    cursor: Cursor = None,
    actor: Annotated[str | None, Query(description="Only of this owner, or of the key with this id.")] = None,
    route: Annotated[str | None, Query(description="Only of routes that contain this.")] = None,
    since: Since = None,
) -> Page[AuditEntry]:
    """List who changed what, newest first: by keys of your project, or by all with an admin key of the default one."""
    return await audit_log.list_(core, who, limit=limit, cursor=cursor, owner=actor, route=route, since=_unix(since))


def _unix(at: datetime | None) -> float | None:
    if at is None:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
