"""Projects: list, create, change. The default project always exists, and its admins manage all projects."""

from __future__ import annotations

from typing import Any

from tunefleet.db import DEFAULT_PROJECT, Connection, after_commit, wake
from tunefleet.db.access import project_rows
from tunefleet.db.access.project_rows import ProjectRow
from tunefleet.errors import ConflictError, InputError, NotFoundError
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import KEYS, Actor, KeyCache, is_operator, may_operate, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.views import to_datetime, to_optional_datetime
from tunefleet.schemas.projects import ProjectChange, ProjectCreate, ProjectUse, ProjectView

_HINT = "`tunefleet projects ls` lists them."


async def list_(core: ServerContext, actor: Actor) -> list[ProjectView]:
    """Return the actor's project, or all projects for an operator."""
    may_read(actor)
    now = core.clock.wall()

    def operation(connection: Connection) -> list[ProjectView]:
        rows = project_rows.all_rows(connection)
        return _views(connection, [row for row in rows if _sees(actor, row.name)], now)

    return await core.read(operation)


async def get(core: ServerContext, actor: Actor, name: str) -> ProjectView:
    """Return a project."""
    may_read(actor)
    now = core.clock.wall()
    return await core.read(lambda connection: _views(connection, [_found(connection, actor, name)], now)[0])


async def create(core: ServerContext, actor: Actor, body: ProjectCreate) -> ProjectView:
    """Create a project.

    Raises:
        ForbiddenError: If the actor is not an admin of the default project.
        ConflictError: If the name is taken.
    """
    may_operate(actor)
    now = core.clock.wall()
    row = ProjectRow(**body.model_dump(), created_by=actor.owner, created_at=now)

    def operation(connection: Connection) -> ProjectView:
        if project_rows.get(connection, row.name) is not None:
            raise ConflictError(f"Project {row.name} already exists.", hint=_HINT)
        project_rows.insert_one(connection, row)
        return _views(connection, [row], now)[0]

    return await core.write(operation)


async def change(core: ServerContext, actor: Actor, name: str, body: ProjectChange) -> ProjectView:
    """Change a project's description, weight or quotas, or archive it.

    Raises:
        ForbiddenError: If the actor is not an admin of the default project.
        InputError: If the weight is set to null.
        ConflictError: If the default project would be archived.
    """
    may_operate(actor)
    now = core.clock.wall()
    values: dict[str, Any] = body.model_dump(exclude_unset=True)
    archived = values.pop("archived", None)
    if "weight" in values and values["weight"] is None:
        raise InputError("A project needs a weight.", hint="Use 1 for an equal share.")

    def operation(connection: Connection) -> ProjectView:
        row = _found(connection, actor, name, lock=True)
        if archived and name == DEFAULT_PROJECT:
            raise ConflictError("The default project cannot be archived.", hint="Its admins manage all other projects.")
        if archived is not None and archived != (row.archived_at is not None):
            values["archived_at"] = now if archived else None
            # Cached keys of an archived project must stop working.
            after_commit(connection, core.state(KeyCache).forget)
            wake(connection, KEYS)
        if values:
            project_rows.change(connection, name, values)
        return _views(connection, [row._replace(**values)], now)[0]

    return await core.write(operation)


def known(connection: Connection, actor: Actor, name: str) -> ProjectRow:
    """Return a project that the actor may create things in.

    Raises:
        ConflictError: If the project is archived.
    """
    row = _found(connection, actor, name)
    if row.archived_at is not None:
        raise ConflictError(
            f"Project {name} is archived.", hint=f"Restore it with `tunefleet projects restore {name}`."
        )
    return row


def _found(connection: Connection, actor: Actor, name: str, *, lock: bool = False) -> ProjectRow:
    row = project_rows.get(connection, name, lock=lock) if _sees(actor, name) else None
    if row is None:
        raise NotFoundError(f"Project {name} not found.", hint=_HINT)
    return row


def _sees(actor: Actor, name: str) -> bool:
    return is_operator(actor) or actor.project == name


def _views(connection: Connection, rows: list[ProjectRow], now: float) -> list[ProjectView]:
    names = [row.name for row in rows]
    running, waiting = project_rows.running(connection, now, names), project_rows.waiting(connection)
    stored = project_rows.stored_bytes(connection, names)
    spent = {name: quotas.gpu_hours(connection, name, running.get(name), now) for name in names}
    views = []
    for row in rows:
        uses = ProjectUse(
            running=running[row.name].tasks if row.name in running else 0,
            waiting=waiting.get(row.name, 0),
            gpu_hours=round(spent[row.name], 4),
            storage_bytes=stored.get(row.name, 0),
        )
        times = {"created_at": to_datetime(row.created_at), "archived_at": to_optional_datetime(row.archived_at)}
        views.append(ProjectView.model_validate({**row._asdict(), **times, "uses": uses}))
    return views
