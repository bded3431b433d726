"""What a registration changes: whose id it is, which attempts the worker still has, and that it is online."""

from __future__ import annotations

import json
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.access import invitations
from tunefleet.db.fleet import clusters, worker_rows
from tunefleet.db.repositories import attempts, controls, events, queue, tasks
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import WorkerRow
from tunefleet.errors import ConflictError, ForbiddenError
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.access.permissions import REDIS_WORKER, Actor
from tunefleet.orchestrator.scheduling import worker_state
from tunefleet.orchestrator.tasks import unreported_ends
from tunefleet.placement import only
from tunefleet.schemas.worker_link import RegisterRequest

# Workers that may register with one key: anyone who has it can make up names.
MOST_OF_A_KEY: Final = 10_000
# Clocks that differ by less are taken to agree: a registration may be on its way for some seconds.
_SKEW_S: Final = 10.0


def with_clock(actor: Actor, request: RegisterRequest, now: float) -> RegisterRequest:
    """Return a registration that says how far its worker's clock is off."""
    # What comes by Redis may have lain there while no server was up.
    known = request.sent_at is not None and actor != REDIS_WORKER
    ahead_s = round((request.sent_at or 0.0) - now, 1) if known else 0.0
    has = request.capabilities.model_copy(update={"clock_ahead_s": ahead_s if abs(ahead_s) >= _SKEW_S else None})
    return request.model_copy(update={"capabilities": has})


def apply(
    connection: Connection, *, actor: Actor, request: RegisterRequest, held: set[str], alive: bool, now: float
) -> set[str]:
    """Store a registration and return the ids of the held attempts that are still good.

    Raises:
        ForbiddenError: If the id belongs to another key, or the key to another id, or to as many as may have it.
        ConflictError: If a living worker with another state folder has the id.
    """
    request = _for_one_task(connection, actor, _as_invited(connection, actor, request))
    before = worker_rows.get(connection, request.worker_id)
    if before is not None:
        refuse_foreign_key(actor, before)
        _refuse_foreign_folder(actor, before, request)
        if before.state_id != request.state_id and before.status == "online" and alive:
            raise ConflictError(
                f"The worker id {request.worker_id} is in use by another machine or results folder.",
                hint="Give this worker an id of its own (WORKER_ID), or a results folder of its own.",
            )
    elif worker_rows.count_of_key(connection, actor.key_id) >= MOST_OF_A_KEY:
        raise ForbiddenError(
            f"{MOST_OF_A_KEY:,} workers have registered with this key, which is as many as may.",
            hint="Remove those that are gone (`tunefleet workers rm`), or take another key.",
        )
    worker_rows.put(connection, _row(before, actor, request, now))
    _leave_if_unneeded(connection, actor, request.worker_id)
    queue.clear_cordons(connection, request.worker_id)
    if before is None or before.status != "online":
        data = {"hostname": request.capabilities.hostname}
        events.append(connection, [Event("worker.online", now, worker_id=request.worker_id, data=data)])
    mine = attempts.open_of(connection, request.worker_id)
    # An offer was perhaps never read; an accepted attempt that nobody holds does not run any more.
    gone = [row for row in mine.values() if row.state == "accepted" and row.id not in held]
    rows = tasks.by_ids(connection, [row.task_id for row in gone])
    # A gang that is not complete has not begun: it costs the task nothing.
    early = [row for row in gone if rows[row.task_id].status == TaskStatus.DISPATCHED]
    unreported_ends.release(connection, early, now)
    lost = [row for row in gone if row not in early]
    unreported_ends.end(
        connection, [(row, TaskReason.WORKER_LOST, "The worker no longer has the task.") for row in lost], now
    )
    return {row.id for row in mine.values() if row.id in held}


def leave(connection: Connection, worker_id: str, now: float) -> None:
    """Store that a worker ends which has nothing left; what it was offered meanwhile is placed anew."""
    mine = attempts.open_of(connection, worker_id).values()
    unreported_ends.release(connection, [row for row in mine if row.state == "offered"], now)
    # What it has sent before may arrive after this, and must not bring it back.
    worker_rows.set_left(connection, worker_id)
    known = controls.get(connection, worker_id)
    if known.drains:
        controls.put(connection, known._replace(drains=0))
    events.append(connection, [Event("worker.offline", now, worker_id=worker_id)])


def refuse_foreign_key(actor: Actor, row: WorkerRow) -> None:
    """Refuse a key that is not the worker's."""
    if row.key_id == actor.key_id:
        return
    if actor == REDIS_WORKER:
        raise ForbiddenError(
            f"The worker id {row.id} belongs to a worker with a key, on the HTTP link.",
            hint="Give this worker an id of its own (WORKER_ID), or let an admin remove the other.",
        )
    if row.key_id == REDIS_WORKER.key_id:
        raise ForbiddenError(
            f"The worker id {row.id} belongs to a worker on the Redis link.",
            hint="Give this worker an id of its own (WORKER_ID), or let an admin remove the other.",
        )
    raise ForbiddenError(
        f"The worker id {row.id} belongs to another key.",
        hint="Use that key or another WORKER_ID, or let an admin remove the worker.",
    )


def _as_invited(connection: Connection, actor: Actor, request: RegisterRequest) -> RegisterRequest:
    """Return a registration as the invitation binds it that its key was made by."""
    row = invitations.by_key(connection, actor.key_id)
    if row is None:
        return request
    if row.worker_id is not None and row.worker_id != request.worker_id:
        raise ForbiddenError(
            f"This key is good for the worker {row.worker_id} only, as it was invited.",
            hint=f"Start it with WORKER_ID={row.worker_id}, or invite this machine under the name {request.worker_id}.",
        )
    if row.tags is None:
        return request
    has = request.capabilities.model_copy(update={"tags": tuple(json.loads(row.tags))})
    return request.model_copy(update={"capabilities": has})


def _for_one_task(connection: Connection, actor: Actor, request: RegisterRequest) -> RegisterRequest:
    """Return a registration as a key binds it that was made for the workers of a cluster's job: to one task."""
    job = clusters.by_key(connection, actor.key_id)
    if job is None:
        return request
    if not job.live:
        raise ForbiddenError(f"The job {job.job_id or job.name} of {job.engine} is over, and its key with it.")
    others = (tag for tag in request.capabilities.tags if tag != only(job.task_id))
    has = request.capabilities.model_copy(update={"tags": (*others, only(job.task_id))})
    return request.model_copy(update={"capabilities": has})


def _leave_if_unneeded(connection: Connection, actor: Actor, worker_id: str) -> None:
    """Send a worker away that comes when its job is wanted no more."""
    job = clusters.by_key(connection, actor.key_id)
    if job is not None and job.state == "leaving":
        known = controls.get(connection, worker_id)
        controls.put(connection, known._replace(drains=1))


def _refuse_foreign_folder(actor: Actor, before: WorkerRow, request: RegisterRequest) -> None:
    """Refuse another results folder to a worker that has no key: the folder is all that it is known by."""
    if actor == REDIS_WORKER and before.state_id != request.state_id:
        host = worker_state.capabilities(before.capabilities).hostname
        raise ConflictError(
            f"The worker id {request.worker_id} is bound to the results folder that it registered from, on {host}.",
            hint="Start it on that folder (RESULTS_DIR), give it another WORKER_ID, or let an admin remove the worker.",
        )


def _row(before: WorkerRow | None, actor: Actor, request: RegisterRequest, now: float) -> WorkerRow:
    new = WorkerRow(
        id=request.worker_id,
        project=actor.project,
        owner=actor.owner,
        key_id=actor.key_id,
        state_id=request.state_id,
        session=request.session,
        status="online",
        capabilities=request.capabilities.model_dump_json(),
        registered_at=now,
        last_seen_at=now,
    )
    return new if before is None else new._replace(registered_at=before.registered_at)
