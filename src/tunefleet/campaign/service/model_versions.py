"""Model operations for users: list and show versions, promote, roll back."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.campaign.service import model_registry, views
from tunefleet.db import Connection
from tunefleet.db.campaigns import models
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.model_version import Stage
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.pagination import before, bounded, split
from tunefleet.schemas.api import Page
from tunefleet.schemas.campaign import ModelVersionView


async def list_(
    core: ServerContext,
    actor: Actor,
    *,
    limit: int = 50,
    cursor: str | None = None,
    name: str | None = None,
    owner: str | None = None,
    stages: Sequence[str] | None = None,
) -> Page[ModelVersionView]:
    """Return versions of models, newest first."""
    may_read(actor)
    start, count = before(cursor), bounded(limit)

    def operation(connection: Connection) -> Page[ModelVersionView]:
        found = models.page(
            connection, project=actor.project, limit=count + 1, before=start, owner=owner, name=name, stages=stages
        )
        rows, next_cursor = split(found, count)
        return Page[ModelVersionView](items=tuple(views.model_view(row) for row in rows), next_cursor=next_cursor)

    return await core.read(operation)


async def get(
    core: ServerContext, actor: Actor, name: str, version: int | None = None, *, owner: str | None = None
) -> ModelVersionView:
    """Return a version of a model; by default the promoted one, or the newest if none is.

    Raises:
        ConflictError: If several users have a model of that name.
    """
    return await core.read(
        lambda connection: views.model_view(model_registry.find(connection, actor, name, version, owner=owner))
    )


async def promote(
    core: ServerContext, actor: Actor, name: str, version: int, *, owner: str | None = None
) -> ModelVersionView:
    """Promote a version regardless of the gate; the one that was promoted is archived.

    Raises:
        ForbiddenError: If it belongs to another user.
        ConflictError: If it is already promoted.
    """

    def operation(connection: Connection) -> ModelVersionView:
        row = model_registry.mine(connection, actor, name, version, owner=owner)
        if row.stage == Stage.PROMOTED:
            raise ConflictError(f"Version {version} of {row.name} is already promoted.")
        reason, now = f"{actor.owner} promoted it.", core.clock.wall()
        return views.model_view(model_registry.settle(connection, row, Stage.PROMOTED, now, reason=reason))

    return await core.write(operation)


async def rollback(core: ServerContext, actor: Actor, name: str, *, owner: str | None = None) -> ModelVersionView:
    """Promote the previously promoted version.

    Raises:
        ForbiddenError: If it belongs to another user.
        ConflictError: If no version is promoted, or none was before it.
    """

    def operation(connection: Connection) -> ModelVersionView:
        row = model_registry.mine(connection, actor, name, owner=owner)
        return views.model_view(model_registry.roll_back(connection, row, core.clock.wall()))

    return await core.write(operation)
