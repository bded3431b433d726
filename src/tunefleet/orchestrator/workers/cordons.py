"""Cordon, drain and uncordon workers. Stored, so that it survives restarts of server and worker."""

from __future__ import annotations

from collections.abc import Callable

from tunefleet.db import Connection
from tunefleet.db.fleet import worker_rows
from tunefleet.db.fleet.worker_rows import ControlRow
from tunefleet.db.repositories import events
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import WorkerRow
from tunefleet.errors import ConflictError
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet.presence import AGENT_SESSION
from tunefleet.orchestrator.workers import workers as views
from tunefleet.schemas.fleet import WorkerView

Change = Callable[[WorkerRow, ControlRow], ControlRow]


async def cordon(core: ServerContext, actor: Actor, worker_id: str) -> WorkerView:
    """Stop offering tasks to a worker; its running tasks continue.

    Raises:
        ForbiddenError: If the actor is not an admin.
    """
    now = core.clock.wall()

    def change(_: WorkerRow, control: ControlRow) -> ControlRow:
        return control if control.cordoned_at is not None else control._replace(cordoned_at=now)

    return await _apply_control(core, actor, worker_id, change, event_kind="worker.cordoned")


async def drain(core: ServerContext, actor: Actor, worker_id: str) -> WorkerView:
    """Let a worker finish its tasks and then leave; it stays cordoned until it is uncordoned.

    A worker that is offline gets the request when it reconnects.

    Raises:
        ConflictError: If it is an agent, which cannot be drained.
        ForbiddenError: If the actor is not an admin.
    """
    now = core.clock.wall()

    def change(row: WorkerRow, control: ControlRow) -> ControlRow:
        if row.session == AGENT_SESSION:
            raise ConflictError(
                f"{row.id} is an agent and cannot be drained: it pulls its jobs.",
                hint="Cordon it to keep new jobs off it, and stop it on its machine when it has finished.",
            )
        return control._replace(cordoned_at=control.cordoned_at or now, drains=1)

    return await _apply_control(core, actor, worker_id, change, event_kind="worker.draining")


async def uncordon(core: ServerContext, actor: Actor, worker_id: str) -> WorkerView:
    """Offer tasks to a worker again; a drain in progress is cancelled.

    Raises:
        ForbiddenError: If the actor is not an admin.
    """

    def change(_: WorkerRow, control: ControlRow) -> ControlRow:
        return control._replace(cordoned_at=None, drains=0)

    return await _apply_control(core, actor, worker_id, change, event_kind="worker.uncordoned")


async def _apply_control(
    core: ServerContext, actor: Actor, worker_id: str, change: Change, *, event_kind: str
) -> WorkerView:
    now = core.clock.wall()

    def operation(connection: Connection) -> None:
        row = views.owned(connection, actor, worker_id)
        control = worker_rows.controls_of(connection, worker_id)
        wanted = change(row, control)
        if wanted != control:
            worker_rows.put_controls(connection, wanted)
            events.append(connection, [Event(event_kind, now, worker_id=worker_id, data={"by": actor.owner})])

    await core.write(operation)
    return await views.get(core, actor, worker_id)
