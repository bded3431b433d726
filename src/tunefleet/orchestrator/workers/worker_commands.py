"""Admin commands for a worker itself: a fixed set, each with an outcome."""

from __future__ import annotations

from functools import partial

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import commands, events
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import CommandRow
from tunefleet.errors import ConflictError, InputError, NotFoundError
from tunefleet.orchestrator.access.permissions import Actor, may_administer
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.tasks import commands as task_commands
from tunefleet.orchestrator.tasks.views import command_view
from tunefleet.orchestrator.workers.workers import owned
from tunefleet.schemas.api import CommandRequest, CommandView
from tunefleet.schemas.training_protocol.training import AgentVerb

MAX_WAIT_S = 30.0


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
            raise ConflictError(f"The worker {worker_id} does not respond.", hint="Run it on its machine.")
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
        raise NotFoundError(f"The worker {worker_id} has no command {command_id}.")
    return row
