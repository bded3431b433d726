"""Hyperparameter sweeps: create, show and stop them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path, Query, Request
from pydantic import BaseModel, Field

from tunefleet.api import request_bodies
from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.query_params import Cursor, Limit, names, one_of
from tunefleet.api.routers import api_router
from tunefleet.lifecycle.sweep import SweepStatus
from tunefleet.orchestrator.sweeps import service
from tunefleet.schemas.api import Page
from tunefleet.schemas.sweep import ImportanceView, SweepCreate, SweepDetail, SweepView

router = api_router(prefix="/sweeps", tags=["sweeps"])

SweepId = Annotated[str, Path(max_length=64, description="Id of the sweep, or a unique prefix.")]


class SweepFilter(BaseModel):
    """Filters of the sweep list. Separate several values with commas."""

    limit: Limit = 50
    cursor: Cursor = None
    status: Annotated[str | None, one_of(SweepStatus), Field(examples=["running"])] = None
    owner: str | None = None


@router.post("", status_code=201, openapi_extra=request_bodies.documented(request_bodies.json_of(SweepCreate)))
async def create(
    request: Request,
    core: CoreDep,
    who: Member,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> SweepDetail:
    """Create a sweep from a workflow file with `sweep`. Its trials are runs with the sweep's id as a tag.

    Repeating the request with the same `Idempotency-Key` returns the first response.
    """
    wanted = await request_bodies.read(request, SweepCreate)
    return await service.create(core, who, wanted, idempotency_key=idempotency_key)


@router.get("")
async def list_sweeps(core: CoreDep, who: Reader, wanted: Annotated[SweepFilter, Query()]) -> Page[SweepView]:
    """List sweeps, newest first."""
    return await service.list_(
        core, who, limit=wanted.limit, cursor=wanted.cursor, statuses=names(wanted.status), owner=wanted.owner
    )


@router.get("/{sweep_id}")
async def get_sweep(core: CoreDep, who: Reader, sweep_id: SweepId) -> SweepDetail:
    """Retrieve a sweep with its trials, the best one first."""
    return await service.get(core, who, sweep_id)


@router.get("/{sweep_id}/importance")
async def get_importance(core: CoreDep, who: Reader, sweep_id: SweepId) -> ImportanceView:
    """Retrieve how much each parameter matters for the objective (PED-ANOVA)."""
    return await service.importance(core, who, sweep_id)


@router.post("/{sweep_id}/stop")
async def stop_sweep(core: CoreDep, who: Member, sweep_id: SweepId) -> SweepDetail:
    """Stop a sweep: no further trial starts, and running trials are stopped and kept."""
    return await service.stop(core, who, sweep_id)


@router.delete("/{sweep_id}", status_code=204)
async def remove_sweep(core: CoreDep, who: Member, sweep_id: SweepId) -> None:
    """Delete a sweep that has ended. Its runs are kept."""
    await service.remove(core, who, sweep_id)
