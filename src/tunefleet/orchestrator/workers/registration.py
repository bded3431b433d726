"""The store side of a registration: ownership of the id, attempts that the worker still has, online status."""

from __future__ import annotations

import json
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.access import keys
from tunefleet.db.fleet import clusters, worker_rows
from tunefleet.db.repositories import attempts, events, queue, tasks
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import WorkerRow
from tunefleet.errors import ConflictError, ForbiddenError
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.access.permissions import REDIS_WORKER, Actor
from tunefleet.orchestrator.fleet import worker_state
from tunefleet.orchestrator.tasks import unreported_ends
from tunefleet.placement import only
from tunefleet.schemas.worker_link import RegisterRequest

# Maximum number of workers per key: its holder can register any number of ids.
MAX_WORKERS_PER_KEY: Final = 10_000
# Smaller clock differences are ignored: a registration can take some seconds to arrive.
_SKEW_S: Final = 10.0


def with_clock(actor: Actor, request: RegisterRequest, now: float) -> RegisterRequest:
    """Return the registration with the offset of the worker's clock."""
    # A message in Redis may have been queued while no server was running.
    known = request.sent_at is not None and actor != REDIS_WORKER
    ahead_s = round((request.sent_at or 0.0) - now, 1) if known else 0.0
    has = request.capabilities.model_copy(update={"clock_ahead_s": ahead_s if abs(ahead_s) >= _SKEW_S else None})
    return request.model_copy(update={"capabilities": has})


def apply(
    connection: Connection, *, actor: Actor, request: RegisterRequest, held: set[str], alive: bool, now: float
) -> set[str]:
    """Store a registration and return the ids of the held attempts that are still valid.

    Raises:
        ForbiddenError: If the id belongs to another key, the key to another id, or the key has too many workers.
        ConflictError: If a live worker with another state folder has the id.
    """
    request = _bind_to_cluster_task(connection, actor, _apply_invitation(connection, actor, request))
    before = worker_rows.get(connection, request.worker_id)
    if before is not None:
        refuse_foreign_key(actor, before)
        _refuse_foreign_folder(actor, before, request)
        if before.state_id != request.state_id and before.status == "online" and alive:
            raise ConflictError(
                f"Worker id {request.worker_id} is in use by another machine or results folder.",
                hint="Set a unique TUNEFLEET_WORKER_ID, or a separate results folder.",
            )
    elif worker_rows.count_of_key(connection, actor.key_id) >= MAX_WORKERS_PER_KEY:
        raise ForbiddenError(
            f"{MAX_WORKERS_PER_KEY:,} workers have registered with this key, which is the limit.",
            hint="Remove workers that are gone (`tunefleet workers rm`), or use another key.",
        )
    worker_rows.put(connection, _row(before, actor, request, now))
    _drain_if_released(connection, actor, request.worker_id)
    queue.clear_cordons(connection, request.worker_id)
    if before is None or before.status != "online":
        data = {"hostname": request.capabilities.hostname}
        events.append(connection, [Event("worker.online", now, worker_id=request.worker_id, data=data)])
    mine = attempts.open_of(connection, request.worker_id)
    # Offers stay open: the worker may not have read them yet. An accepted attempt that it does not hold is lost.
    gone = [row for row in mine.values() if row.state == "accepted" and row.id not in held]
    rows = tasks.by_ids(connection, [row.task_id for row in gone])
    # An incomplete gang has not started: releasing it does not count as a failure.
    early = [row for row in gone if rows[row.task_id].status == TaskStatus.DISPATCHED]
    unreported_ends.release(connection, early, now)
    lost = [row for row in gone if row not in early]
    unreported_ends.end(
        connection, [(row, TaskReason.WORKER_LOST, "The worker no longer has the task.") for row in lost], now
    )
    return {row.id for row in mine.values() if row.id in held}


def leave(connection: Connection, worker_id: str, now: float) -> None:
    """Store that an idle worker leaves; offers in transit are released."""
    mine = attempts.open_of(connection, worker_id).values()
    unreported_ends.release(connection, [row for row in mine if row.state == "offered"], now)
    # Earlier messages may arrive after this one and must not bring it back online.
    worker_rows.set_left(connection, worker_id)
    known = worker_rows.controls_of(connection, worker_id)
    if known.drains:
        worker_rows.put_controls(connection, known._replace(drains=0))
    events.append(connection, [Event("worker.offline", now, worker_id=worker_id)])


def refuse_foreign_key(actor: Actor, row: WorkerRow) -> None:
    """Raise ForbiddenError for a key that is not the worker's."""
    if row.key_id == actor.key_id:
        return
    if actor == REDIS_WORKER:
        raise ForbiddenError(
            f"Worker id {row.id} belongs to a worker with a key, on the HTTP link.",
            hint="Set a unique TUNEFLEET_WORKER_ID, or let an admin remove the other worker.",
        )
    if row.key_id == REDIS_WORKER.key_id:
        raise ForbiddenError(
            f"Worker id {row.id} belongs to a worker on the Redis link.",
            hint="Set a unique TUNEFLEET_WORKER_ID, or let an admin remove the other worker.",
        )
    raise ForbiddenError(
        f"Worker id {row.id} belongs to another key.",
        hint="Use that key or another TUNEFLEET_WORKER_ID, or let an admin remove the worker.",
    )


def _apply_invitation(connection: Connection, actor: Actor, request: RegisterRequest) -> RegisterRequest:
    """Apply the worker id and tags that the key's invitation fixed."""
    row = keys.invitation_of_key(connection, actor.key_id)
    if row is None:
        return request
    if row.worker_id is not None and row.worker_id != request.worker_id:
        raise ForbiddenError(
            f"This key is valid only for worker {row.worker_id}, as invited.",
            hint=f"Start it with TUNEFLEET_WORKER_ID={row.worker_id}, or "
            f"invite this machine under the name {request.worker_id}.",
        )
    if row.tags is None:
        return request
    has = request.capabilities.model_copy(update={"tags": tuple(json.loads(row.tags))})
    return request.model_copy(update={"capabilities": has})


def _bind_to_cluster_task(connection: Connection, actor: Actor, request: RegisterRequest) -> RegisterRequest:
    """Bind a worker with the key of a cluster job to the job's task."""
    job = clusters.by_key(connection, actor.key_id)
    if job is None:
        return request
    if not job.live:
        raise ForbiddenError(f"Job {job.job_id or job.name} of {job.engine} has ended, and its key has expired.")
    others = (tag for tag in request.capabilities.tags if tag != only(job.task_id))
    has = request.capabilities.model_copy(update={"tags": (*others, only(job.task_id))})
    return request.model_copy(update={"capabilities": has})


def _drain_if_released(connection: Connection, actor: Actor, worker_id: str) -> None:
    """Drain a worker that registers after its cluster job was released."""
    job = clusters.by_key(connection, actor.key_id)
    if job is not None and job.state == "leaving":
        known = worker_rows.controls_of(connection, worker_id)
        worker_rows.put_controls(connection, known._replace(drains=1))


def _refuse_foreign_folder(actor: Actor, before: WorkerRow, request: RegisterRequest) -> None:
    """Refuse another results folder for a worker without a key, which only the folder identifies."""
    if actor == REDIS_WORKER and before.state_id != request.state_id:
        host = worker_state.capabilities(before.capabilities).hostname
        raise ConflictError(
            f"Worker id {request.worker_id} is bound to the results folder that it registered from, on {host}.",
            hint="Start it on that folder (TUNEFLEET_RESULTS_DIR), give it another TUNEFLEET_WORKER_ID, or let an "
            "admin remove the worker.",
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
