"""Admin commands for a worker, each with an outcome; and cordon, drain and uncordon, which survive restarts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import orjson

from tunefleet.db import Connection
from tunefleet.db.fleet import worker_rows
from tunefleet.db.fleet.worker_rows import ControlRow
from tunefleet.db.repositories import commands, events
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import CommandRow, WorkerRow
from tunefleet.errors import ConflictError, InputError, NotFoundError
from tunefleet.orchestrator.access.permissions import Actor, may_administer
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.presence import AGENT_SESSION
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.tasks import commands as task_commands
from tunefleet.orchestrator.tasks.views import command_view
from tunefleet.orchestrator.workers import workers as views
from tunefleet.orchestrator.workers.workers import owned
from tunefleet.schemas.api import CommandRequest, CommandView
from tunefleet.schemas.fleet import WorkerView
from tunefleet.schemas.training_protocol.training import AgentVerb

MAX_WAIT_S = 30.0
Change = Callable[[WorkerRow, ControlRow], ControlRow]


async def send(core: ServerContext, actor: Actor, worker_id: str, request: CommandRequest) -> CommandView:
    """Send an admin command to a worker; a known command id returns its command.

    Raises:
        ConflictError: If the worker is not reachable, or the command id was used for another command.
        ForbiddenError: If the actor is not an admin.
    """
    may_administer(actor)
    if request.command not in set(AgentVerb):
        raise InputError(f"Unknown command {request.command!r}.", hint=f"Available: {', '.join(AgentVerb)}.")
    snapshot = cluster_state.fleet_snapshot(core)

    def operation(connection: Connection) -> CommandRow:
        owned(connection, actor, worker_id)
        # Idempotent: a retried request must not run the command twice.
        known = None if request.command_id is None else commands.get(connection, request.command_id)
        if known is not None:
            if (known.worker_id, known.command, known.task_id) != (worker_id, request.command, None):
                raise ConflictError(f"The command id {known.id} was used for another command.", hint="Use a new one.")
            return known
        if worker_id not in snapshot.limits:
            raise ConflictError(f"Worker {worker_id} does not respond.", hint="Run it on its machine.")
        row = CommandRow(
            request.command_id or new_id("cmd"), None, None, worker_id, request.command,
            orjson.dumps(request.data).decode(), "pending", None, None, None, actor.owner, snapshot.now, snapshot.now,
        )  # fmt: skip
        commands.insert_one(connection, row)
        data = {"command_id": row.id, "command": row.command}
        events.append(connection, [Event("command.asked", snapshot.now, worker_id=worker_id, data=data)])
        return row

    return command_view(await core.write(operation))


async def get(
    core: ServerContext, actor: Actor, worker_id: str, command_id: str, *, wait_s: float = 0.0
) -> CommandView:
    """Return an admin command as soon as it is settled, or after the timeout.

    Raises:
        NotFoundError: If the worker has no such command.
    """
    may_administer(actor)
    ends_at = core.clock.monotonic() + min(max(wait_s, 0.0), MAX_WAIT_S)
    topic = commands.topic(command_id)
    while True:
        seen = core.signals.version(topic)
        row = await core.read(partial(_one, actor=actor, worker_id=worker_id, command_id=command_id))
        left_s = ends_at - core.clock.monotonic()
        if task_commands.done(row) or left_s <= 0 or core.signals.closed:
            return command_view(row)
        await core.signals.wait(topic, left_s, seen)


def _one(connection: Connection, *, actor: Actor, worker_id: str, command_id: str) -> CommandRow:
    owned(connection, actor, worker_id)
    row = commands.get(connection, command_id)
    if row is None or row.task_id is not None or row.worker_id != worker_id:
        raise NotFoundError(f"Worker {worker_id} has no command {command_id}.")
    return row


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
                hint="Cordon it to stop new jobs, and stop it on its machine when it has finished.",
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
