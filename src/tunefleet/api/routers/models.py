"""Models: versions that campaigns have made, and which one is promoted."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, Field

from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.query_params import Cursor, Limit, names, one_of
from tunefleet.api.routers import api_router
from tunefleet.lifecycle.model_version import Stage
from tunefleet.orchestrator.campaigns import model_versions
from tunefleet.schemas.api import Page
from tunefleet.schemas.campaign import ModelVersionView

router = api_router(prefix="/models", tags=["models"])

Name = Annotated[str, Path(max_length=128, description="Its name: that of the campaign that makes it.")]
Version = Annotated[int, Path(ge=1, lt=2**31)]
Owner = Annotated[str | None, Query(max_length=200, description="Whose, if several people have one of that name.")]


class ModelFilter(BaseModel):
    """Which versions to list; a filter of stages takes several separated by commas."""

    limit: Limit = 50
    cursor: Cursor = None
    name: str | None = None
    owner: str | None = None
    stage: Annotated[str | None, one_of(Stage), Field(examples=["promoted"])] = None


@router.get("")
async def list_models(core: CoreDep, who: Reader, wanted: Annotated[ModelFilter, Query()]) -> Page[ModelVersionView]:
    """List versions of models, newest first."""
    return await model_versions.list_(
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
    """Show the promoted version of a model, or the newest if none is."""
    return await model_versions.get(core, who, name, owner=owner)


@router.get("/{name}/versions/{version}")
async def get_version(
    core: CoreDep, who: Reader, name: Name, version: Version, owner: Owner = None
) -> ModelVersionView:
    """Show a version of a model: where it is, what it was made of, and how it was measured."""
    return await model_versions.get(core, who, name, version, owner=owner)


@router.post("/{name}/versions/{version}/promote")
async def promote(core: CoreDep, who: Member, name: Name, version: Version, owner: Owner = None) -> ModelVersionView:
    """Promote a version, whatever the gate said; the one that was promoted is archived."""
    return await model_versions.promote(core, who, name, version, owner=owner)


@router.post("/{name}/rollback")
async def roll_back(core: CoreDep, who: Member, name: Name, owner: Owner = None) -> ModelVersionView:
    """Promote the version that was promoted before the one that is."""
    return await model_versions.rollback(core, who, name, owner=owner)
