"""Workers: who is there, and forgetting one for good."""

from __future__ import annotations

from functools import partial

from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.services import endings, roster
from tunefleet.services.core import Core
from tunefleet.services.identity import Actor, may_administer, may_read
from tunefleet.services.paging import bounded
from tunefleet.services.views import maybe_moment, moment
from tunefleet.store import Connection, attempts, commands, workers
from tunefleet.store.rows import WorkerRow
from tunefleet.wire.api import Page
from tunefleet.wire.fleet import WorkerView


async def list_(
    core: Core, actor: Actor, *, limit: int = 100, cursor: str | None = None, status: str | None = None
) -> Page[WorkerView]:
    """Return workers by id; a filter takes several values separated by commas."""
    may_read(actor)
    limit = bounded(limit)
    rows, running = await core.read(_all)
    views = [_view(core, row, running.get(row.id, ())) for row in rows if cursor is None or row.id > cursor]
    if status is not None:
        views = [view for view in views if view.status in status.split(",")]
    return Page[WorkerView](items=tuple(views[:limit]), next_cursor=views[limit - 1].id if len(views) > limit else None)


async def get(core: Core, actor: Actor, worker_id: str) -> WorkerView:
    """Return a worker.

    Raises:
        NotFoundError: If there is none.
    """
    may_read(actor)
    row, held = await core.read(partial(_one, worker_id=worker_id))
    return _view(core, row, held)


async def remove(core: Core, actor: Actor, worker_id: str) -> None:
    """Forget a worker that does not answer; what it held is placed anew.

    Raises:
        NotFoundError: If there is none.
        ConflictError: If it answers.
        ForbiddenError: If the actor is not an admin.
    """
    may_administer(actor)
    here = roster.presences(core)

    def operation(connection: Connection) -> None:
        row, _ = _one(connection, worker_id)
        if row.status == "online" and worker_id in here.limits:
            raise ConflictError(f"The worker {worker_id} is online.", hint="Stop it first.")
        mine = attempts.open_of(connection, worker_id).values()
        lost = TaskReason.WORKER_LOST
        ended = [
            (a, lost if a.state == "accepted" else TaskReason.NOT_ACCEPTED, "Its worker was removed.") for a in mine
        ]
        endings.end(connection, ended, here.now)
        workers.remove(connection, worker_id)
        commands.delete_of_worker(connection, worker_id)

    await core.write(operation)
    core.fleet.forget(worker_id)


def _all(connection: Connection) -> tuple[list[WorkerRow], dict[str, list[str]]]:
    running: dict[str, list[str]] = {}
    for attempt in attempts.all_open(connection):
        running.setdefault(attempt.worker_id, []).append(attempt.task_id)
    return workers.all_rows(connection), running


def _one(connection: Connection, worker_id: str) -> tuple[WorkerRow, list[str]]:
    row = workers.get(connection, worker_id)
    if row is None:
        raise NotFoundError(f"There is no worker {worker_id}.", hint="`tunefleet workers` lists them.")
    return row, [attempt.task_id for attempt in attempts.open_of(connection, worker_id).values()]


def _view(core: Core, row: WorkerRow, held: list[str] | tuple[str, ...]) -> WorkerView:
    status: str = row.status
    if status == "online" and core.fleet.silence_s(row.id) >= core.settings.lost_after_s / 2:
        status = "unreachable"
    seen_at = core.fleet.seen_at.get(row.id, row.last_seen_at)
    return WorkerView.model_validate(
        {
            "id": row.id,
            "status": status,
            "owner": row.owner,
            "capabilities": roster.capabilities(row.capabilities),
            "running": tuple(held),
            "registered_at": moment(row.registered_at),
            "last_seen_at": maybe_moment(seen_at),
        }
    )
