"""The model registry: versions are registered by cycles, promoted by cycles or users, and never deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from tunefleet.campaign.service import views
from tunefleet.campaign.service.cycle_state import CycleState, ModelVersion, NewVersion
from tunefleet.campaign.service.status import tell
from tunefleet.db import Connection
from tunefleet.db.campaigns import campaigns, models
from tunefleet.db.campaigns.models import ModelRow
from tunefleet.db.repositories import artifacts
from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.lifecycle.cycle import Stage, StepName, move_version
from tunefleet.orchestrator.access.permissions import Actor, may_change, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.views import before_cursor, bounded_limit, split_page
from tunefleet.schemas.api import Page
from tunefleet.schemas.campaign import ModelVersionView

_LIST: Final = "`tunefleet models ls` lists them."
_REGISTRY_KEYS: Final = ("artifact_id", "kept_from")


def version_of(row: ModelRow) -> ModelVersion:
    """Return the engine's view of a version."""
    return ModelVersion(
        name=row.name,
        version=row.version,
        stage=Stage(row.stage),
        form=row.form,
        campaign_id=row.campaign_id,
        cycle=row.cycle,
        location=orjson.loads(row.location),
        lineage=orjson.loads(row.lineage),
        evaluation=orjson.loads(row.evaluation),
        reason=row.reason,
        created_at=row.created_at,
        promoted_at=row.promoted_at,
    )


def enter(connection: Connection, state: CycleState, new: NewVersion, now: float) -> ModelRow:
    """Register the model of a cycle's attempt; registered again, the version is updated."""
    # Per attempt of the cycle, so that a retry of the step after a crash updates the same version.
    key = f"{state.campaign_id}/{state.number}.{state.retried}"
    row = models.by_key(connection, key)
    # A stage that the gate or a user has decided is not decided again.
    decided = row is not None and row.stage != Stage.CANDIDATE
    stage = Stage(row.stage) if row is not None and decided else _stage(connection, state, new)
    reason = row.reason if row is not None and decided else new.reason
    if not decided and stage is Stage.PROMOTED and (other := _other_promoted(connection, state)) is not None:
        stage, reason = Stage.ARCHIVED, f"{other}, so it does not replace it. {new.reason or ''}".rstrip()
    task_id = new.location.get("task_id")
    texts = {name: orjson.dumps(dict(getattr(new, name))).decode() for name in ("lineage", "evaluation")}
    if row is None:
        number = models.newest(connection, state.project, state.owner, state.name) + 1
        location = _stored_location(connection, state, number, new.location, now)
        row = models.insert_one(
            connection,
            ModelRow(
                state.project, state.owner, state.name, number, Stage.CANDIDATE.value, new.form, state.campaign_id,
                state.number, key, task_id, location, texts["lineage"], texts["evaluation"], reason, now, None,
            ),
        )  # fmt: skip
    else:
        known = orjson.loads(row.location)
        # The registry already has its own copy of this artifact: keep its id.
        if known.get("kept_from") is not None and known["kept_from"] == new.location.get("artifact_id"):
            location = orjson.dumps({**new.location, **{name: known[name] for name in _REGISTRY_KEYS}}).decode()
        else:
            location = _stored_location(connection, state, row.version, new.location, now)
        changes = {"form": new.form, "task_id": task_id, "location": location, "reason": reason, **texts}
        row = models.change(connection, row, changes)
    return row if row.stage == stage else settle(connection, row, stage, now, reason=reason)


def _other_promoted(connection: Connection, state: CycleState) -> str | None:
    """Return a reason if a version other than the cycle's base or its own was promoted meanwhile; else None."""
    base = state.outcomes.get(StepName.SUBMIT, {}).get("base")
    if base is None:
        return None
    now = models.promoted(connection, state.project, state.owner, state.name)
    own = [each.version for each in models.of_campaign(connection, state.campaign_id, [state.number])]
    version = None if now is None else now.version
    if version in {base.get("version"), *own}:
        return None
    was = "no version" if base.get("version") is None else f"version {base['version']}"
    return f"It was trained from {was}, and version {version} was promoted meanwhile" if version else None


def _stage(connection: Connection, state: CycleState, new: NewVersion) -> Stage:
    """Return the stage of a new version; a repeated merge does not promote a model that was not promoted."""
    made = models.of_campaign(connection, state.campaign_id, [state.number])
    before = [each for each in made if each.stage != Stage.CANDIDATE]
    if new.stage is Stage.PROMOTED and before and before[-1].stage != Stage.PROMOTED:
        return Stage.ARCHIVED
    return new.stage


def settle(connection: Connection, row: ModelRow, stage: Stage, now: float, *, reason: str | None) -> ModelRow:
    """Change the stage of a version; promoting one archives the one that was promoted.

    Raises:
        IllegalTransition: If the lifecycle does not allow the change.
    """
    move_version(Stage(row.stage), stage)
    changes: dict[str, Any] = {"stage": stage.value, "reason": reason}
    if stage is Stage.PROMOTED:
        old = models.promoted(connection, row.project, row.owner, row.name)
        if old is not None:
            models.change(
                connection, old, {"stage": Stage.ARCHIVED.value, "reason": f"Version {row.version} was promoted."}
            )
        changes["promoted_at"] = now
    row = models.change(connection, row, changes)
    campaign = campaigns.by_id(connection, row.campaign_id)
    if campaign is not None:
        kind = "campaign.promoted" if stage is Stage.PROMOTED else "campaign.archived"
        tell(connection, campaign, kind, now, model=row.name, version=row.version, cycle=row.cycle, reason=reason)
    return row


def find(
    connection: Connection, actor: Actor, name: str, version: int | None = None, *, owner: str | None = None
) -> ModelRow:
    """Return a version that the actor may see; by default the promoted one, or the newest if none is.

    Raises:
        ConflictError: If several users have a model of that name.
        ForbiddenError: If the actor may not read.
    """
    may_read(actor)
    owner = owner or _owner(connection, actor, name)
    if version is None:
        row = models.promoted(connection, actor.project, owner, name)
        if row is not None:
            return row
        version = models.newest(connection, actor.project, owner, name)
    found = models.get(connection, actor.project, owner, name, version)
    if found is None:
        raise NotFoundError(f"Model {name} has no version {version}.", hint=_LIST)
    return found


def mine(
    connection: Connection, actor: Actor, name: str, version: int | None = None, *, owner: str | None = None
) -> ModelRow:
    """Return a version that the actor may change.

    Raises:
        ConflictError: If several users have a model of that name.
        ForbiddenError: If it belongs to another user.
    """
    row = find(connection, actor, name, version, owner=owner)
    may_change(actor, row.owner, f"Model {row.name}")
    return row


def roll_back(connection: Connection, row: ModelRow, now: float) -> ModelRow:
    """Promote the previously promoted version.

    Raises:
        ConflictError: If no version is promoted, or none was before it.
    """
    current = models.promoted(connection, row.project, row.owner, row.name)
    if current is None:
        raise ConflictError(f"No version of {row.name} is promoted.", hint=_LIST)
    before = models.promoted_before(connection, current)
    if before is None:
        raise ConflictError(f"No version of {row.name} was promoted before version {current.version}.", hint=_LIST)
    return settle(connection, before, Stage.PROMOTED, now, reason=f"Rolled back from version {current.version}.")


def _owner(connection: Connection, actor: Actor, name: str) -> str:
    owners = models.owners(connection, actor.project, name)
    if actor.owner in owners:
        return actor.owner
    if not owners:
        raise NotFoundError(f"Model {name} not found.", hint=_LIST)
    if len(owners) > 1:
        raise ConflictError(
            f"Several users have a model {name}: {', '.join(owners)}.", hint=f"Name the owner: {owners[0]}/{name}."
        )
    return owners[0]


def _stored_location(
    connection: Connection, state: CycleState, number: int, location: Mapping[str, Any], now: float
) -> str:
    """Return the location of a version as JSON; a model on this server becomes an artifact of the registry's own."""
    # The task's own artifact is removed with the task.
    id_ = location.get("artifact_id")
    made = artifacts.by_ids(connection, [id_]).get(id_) if isinstance(id_, str) else None
    if made is None or made.project != state.project:
        return orjson.dumps(dict(location)).decode()
    own = new_id("art")
    about = {"model": state.name, "version": number, "campaign": state.campaign_id, "cycle": state.number}
    row = {
        "id": own, "project": state.project, "name": f"{state.name}.v{number}", "kind": made.kind,
        "digest": made.digest, "size_bytes": made.size_bytes, "file_count": made.file_count, "task_id": None,
        "attempt_id": None, "owner": state.owner, "created_at": now, "metadata": orjson.dumps(about).decode(),
    }  # fmt: skip
    artifacts.insert_one(connection, row, artifacts.files(connection, made.id))
    return orjson.dumps({**location, "artifact_id": own, "kept_from": made.id}).decode()


async def list_versions(
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
    start, count = before_cursor(cursor), bounded_limit(limit)

    def operation(connection: Connection) -> Page[ModelVersionView]:
        found = models.page(
            connection, project=actor.project, limit=count + 1, before=start, owner=owner, name=name, stages=stages
        )
        rows, next_cursor = split_page(found, count)
        return Page[ModelVersionView](items=tuple(views.model_view(row) for row in rows), next_cursor=next_cursor)

    return await core.read(operation)


async def get_version(
    core: ServerContext, actor: Actor, name: str, version: int | None = None, *, owner: str | None = None
) -> ModelVersionView:
    """Return a version of a model; by default the promoted one, or the newest if none is.

    Raises:
        ConflictError: If several users have a model of that name.
    """
    return await core.read(lambda connection: views.model_view(find(connection, actor, name, version, owner=owner)))


async def promote(
    core: ServerContext, actor: Actor, name: str, version: int, *, owner: str | None = None
) -> ModelVersionView:
    """Promote a version regardless of the gate; the one that was promoted is archived.

    Raises:
        ForbiddenError: If it belongs to another user.
        ConflictError: If it is already promoted.
    """

    def operation(connection: Connection) -> ModelVersionView:
        row = mine(connection, actor, name, version, owner=owner)
        if row.stage == Stage.PROMOTED:
            raise ConflictError(f"Version {version} of {row.name} is already promoted.")
        reason, now = f"{actor.owner} promoted it.", core.clock.wall()
        return views.model_view(settle(connection, row, Stage.PROMOTED, now, reason=reason))

    return await core.write(operation)


async def rollback(core: ServerContext, actor: Actor, name: str, *, owner: str | None = None) -> ModelVersionView:
    """Promote the previously promoted version.

    Raises:
        ForbiddenError: If it belongs to another user.
        ConflictError: If no version is promoted, or none was before it.
    """

    def operation(connection: Connection) -> ModelVersionView:
        row = mine(connection, actor, name, owner=owner)
        return views.model_view(roll_back(connection, row, core.clock.wall()))

    return await core.write(operation)
