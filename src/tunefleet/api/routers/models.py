"""Models: versions that campaigns produce, and which one is promoted."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, Field

from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.query_params import Cursor, Limit, names, one_of
from tunefleet.api.routers import api_router
from tunefleet.campaign.service import model_registry
from tunefleet.lifecycle.cycle import Stage
from tunefleet.schemas.api import Page
from tunefleet.schemas.campaign import ModelVersionView

router = api_router(prefix="/models", tags=["models"])

Name = Annotated[str, Path(max_length=128, description="Name of the model: that of its campaign.")]
Version = Annotated[int, Path(ge=1, lt=2**31)]
Owner = Annotated[
    str | None, Query(max_length=200, description="Owner of the model, if several users have one of that name.")
]


class ModelFilter(BaseModel):
    """Filters of the version list. Separate several stages with commas."""

    limit: Limit = 50
    cursor: Cursor = None
    name: str | None = None
    owner: str | None = None
    stage: Annotated[str | None, one_of(Stage), Field(examples=["promoted"])] = None


@router.get("")
async def list_models(core: CoreDep, who: Reader, wanted: Annotated[ModelFilter, Query()]) -> Page[ModelVersionView]:
    """List model versions, newest first."""
    return await model_registry.list_versions(
        core,
        who,
        limit=wanted.limit,
        cursor=wanted.cursor,
        name=wanted.name,
        owner=wanted.owner,
        stages=names(wanted.stage),
    )


@router.get("/{name}")
async def get(core: CoreDep, who: Reader, name: Name, owner: Owner = None) -> ModelVersionView:
    """Retrieve the promoted version of a model, or the newest version if none is promoted."""
    return await model_registry.get_version(core, who, name, owner=owner)


@router.get("/{name}/versions/{version}")
async def get_version(
    core: CoreDep, who: Reader, name: Name, version: Version, owner: Owner = None
) -> ModelVersionView:
    """Retrieve a model version: its location, its origin and its evaluation."""
    return await model_registry.get_version(core, who, name, version, owner=owner)


@router.post("/{name}/versions/{version}/promote")
async def promote(core: CoreDep, who: Member, name: Name, version: Version, owner: Owner = None) -> ModelVersionView:
    """Promote a version, regardless of the gate's decision. The previously promoted version is archived."""
    return await model_registry.promote(core, who, name, version, owner=owner)


@router.post("/{name}/rollback")
async def roll_back(core: CoreDep, who: Member, name: Name, owner: Owner = None) -> ModelVersionView:
    """Promote the version that was promoted before the current one."""
    return await model_registry.rollback(core, who, name, owner=owner)
