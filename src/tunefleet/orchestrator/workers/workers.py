"""List, read and remove workers."""

from __future__ import annotations

from functools import partial

from tunefleet.db import DEFAULT_PROJECT, Connection
from tunefleet.db.fleet import worker_rows
from tunefleet.db.fleet.worker_rows import ControlRow
from tunefleet.db.repositories import attempts, commands
from tunefleet.db.repositories import tasks as task_rows
from tunefleet.db.rows import WorkerRow
from tunefleet.errors import ConflictError, ForbiddenError, NotFoundError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.access.permissions import Actor, is_operator, may_administer, may_read, may_see_worker
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state, worker_state
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.tasks import unreported_ends
from tunefleet.orchestrator.views import bounded_limit, to_datetime, to_optional_datetime
from tunefleet.schemas.api import Page
from tunefleet.schemas.fleet import WorkerView


async def list_(
    core: ServerContext, actor: Actor, *, limit: int = 100, cursor: str | None = None, status: str | None = None
) -> Page[WorkerView]:
    """Return workers by id; `status` takes several values separated by commas."""
    may_read(actor)
    limit = bounded_limit(limit)
    rows, running, decided = await core.read(partial(_all, actor=actor))
    shown = [row for row in rows if cursor is None or row.id > cursor]
    views = [_view(core, row, running.get(row.id, ()), decided.get(row.id)) for row in shown]
    if status is not None:
        views = [view for view in views if view.status in status.split(",")]
    return Page[WorkerView](items=tuple(views[:limit]), next_cursor=views[limit - 1].id if len(views) > limit else None)


async def get(core: ServerContext, actor: Actor, worker_id: str) -> WorkerView:
    """Return a worker."""
    may_read(actor)
    row, held, decided = await core.read(partial(_one, actor=actor, worker_id=worker_id))
    return _view(core, row, held, decided)


async def remove(core: ServerContext, actor: Actor, worker_id: str) -> None:
    """Remove a worker that is offline; its tasks are queued again.

    Raises:
        ConflictError: If it is online.
        ForbiddenError: If the actor is not an admin.
    """
    may_administer(actor)
    snapshot = cluster_state.fleet_snapshot(core)

    def operation(connection: Connection) -> None:
        row = owned(connection, actor, worker_id)
        if row.status == "online" and worker_id in snapshot.limits:
            raise ConflictError(f"Worker {worker_id} is online.", hint="Stop it first.")
        mine = attempts.open_of(connection, worker_id).values()
        lost = TaskReason.WORKER_LOST
        ended = [
            (a, lost if a.state == "accepted" else TaskReason.NOT_ACCEPTED, "Its worker was removed.") for a in mine
        ]
        unreported_ends.end(connection, ended, snapshot.now)
        worker_rows.remove(connection, worker_id)
        commands.delete_of_worker(connection, worker_id)

    await core.write(operation)
    core.state(Fleet).forget(worker_id)


def owned(connection: Connection, actor: Actor, worker_id: str) -> WorkerRow:
    """Return a worker that an admin may change: one of its project, or any for an operator.

    Raises:
        ForbiddenError: If the actor is not an admin, or the worker serves all projects.
        NotFoundError: If there is none, or the actor may not see it.
    """
    may_administer(actor)
    row = _find_worker(connection, actor, worker_id)
    if row.project != actor.project and not is_operator(actor):
        raise ForbiddenError(f"Worker {worker_id} serves all projects.", hint=f"Use an admin key of {DEFAULT_PROJECT}.")
    return row


def _all(
    connection: Connection, *, actor: Actor
) -> tuple[list[WorkerRow], dict[str, list[str]], dict[str, ControlRow]]:
    running: dict[str, list[str]] = {}
    held = attempts.all_open(connection)
    mine = task_rows.of_project(connection, actor.project, [attempt.task_seq for attempt in held])
    for attempt in held:
        if attempt.task_seq in mine:
            running.setdefault(attempt.worker_id, []).append(attempt.task_id)
    rows = [row for row in worker_rows.all_rows(connection) if may_see_worker(actor, row.project)]
    return rows, running, worker_rows.all_controls(connection)


def _one(connection: Connection, *, actor: Actor, worker_id: str) -> tuple[WorkerRow, list[str], ControlRow]:
    row = _find_worker(connection, actor, worker_id)
    held = attempts.open_of(connection, worker_id).values()
    mine = task_rows.of_project(connection, actor.project, [attempt.task_seq for attempt in held])
    return row, [each.task_id for each in held if each.task_seq in mine], worker_rows.controls_of(connection, worker_id)


def _find_worker(connection: Connection, actor: Actor, worker_id: str) -> WorkerRow:
    row = worker_rows.get(connection, worker_id)
    if row is None or not may_see_worker(actor, row.project):
        raise NotFoundError(f"Worker {worker_id} not found.", hint="List them with `tunefleet workers`.")
    return row


def _view(
    core: ServerContext, row: WorkerRow, held: list[str] | tuple[str, ...], decided: ControlRow | None
) -> WorkerView:
    status: str = row.status
    if status == "online" and core.state(Fleet).silence_s(row.id) >= core.settings.lost_after_s / 2:
        status = "unreachable"
    seen_at = core.state(Fleet).seen_at.get(row.id, row.last_seen_at)
    presence = core.state(Fleet).presences.get(row.id)
    return WorkerView.model_validate(
        {
            "id": row.id,
            "status": status,
            "owner": row.owner,
            "capabilities": worker_state.capabilities(row.capabilities),
            "running": tuple(held),
            "registered_at": to_datetime(row.registered_at),
            "last_seen_at": to_optional_datetime(seen_at),
            "cordoned": decided is not None and decided.cordoned_at is not None,
            "draining": decided is not None and bool(decided.drains),
            "elastic_disabled": decided is not None and decided.elastic_disabled_at is not None,
            "load": presence.load if presence is not None else None,
        }
    )
