"""Agent operations for users: list, show, remove."""

from __future__ import annotations

from tunefleet.db import Connection
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import attempts, training_protocol
from tunefleet.db.rows import WorkerRow
from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import worker_state
from tunefleet.orchestrator.fleet.agents import ONLINE_S, leased, refuse_stranger
from tunefleet.orchestrator.fleet.presence import AGENT_SESSION, Fleet
from tunefleet.orchestrator.tasks import unreported_ends
from tunefleet.orchestrator.views import to_datetime, to_optional_datetime
from tunefleet.schemas.training_protocol.training import AgentList, AgentRemoved, AgentReply, AgentView


async def list_(core: ServerContext, actor: Actor) -> AgentList:
    """Return the actor's agents; those of all owners for an admin or viewer."""
    may_read(actor)
    rows = await core.read(worker_rows.all_rows)
    mine = [
        row
        for row in rows
        if row.session == AGENT_SESSION
        and row.project == actor.project
        and (actor.role != "member" or row.owner == actor.owner)
    ]
    return AgentList(agents=[_view(core, row) for row in mine], online_threshold_seconds=int(ONLINE_S))


async def get(core: ServerContext, actor: Actor, agent_id: str) -> AgentReply:
    """Return an agent with its job counts."""
    may_read(actor)

    def operation(connection: Connection) -> tuple[WorkerRow, tuple[int, int, int]]:
        return _find(connection, actor, agent_id), training_protocol.counts(connection, agent_id)

    row, (total, completed, running) = await core.read(operation)
    counted = {"total_jobs": total, "completed_jobs": completed, "running_jobs": running}
    return AgentReply(agent=_view(core, row).model_copy(update=counted))


async def remove(core: ServerContext, actor: Actor, agent_id: str) -> AgentRemoved:
    """Remove an agent; its jobs are rescheduled.

    Raises:
        ConflictError: If it is online and has jobs.
    """

    def operation(connection: Connection) -> None:
        row = _find(connection, actor, agent_id)
        if actor.role != "admin":
            refuse_stranger(actor, row)
        mine = list(attempts.open_of(connection, agent_id).values())
        if mine and _view(core, row).is_online:
            raise ConflictError(f"Agent {agent_id} is online and has jobs.", hint="Cancel them, or stop it first.")
        now = core.clock.wall()
        unreported_ends.end(
            connection, [(each, TaskReason.WORKER_LOST, "Its agent was removed.") for each in mine], now
        )
        worker_rows.remove(connection, agent_id)

    await core.write(operation)
    core.state(Fleet).forget(agent_id)
    return AgentRemoved(message=f"Agent {agent_id} was removed.")


def _find(connection: Connection, actor: Actor, agent_id: str) -> WorkerRow:
    """Return an agent that the actor may see."""
    row = worker_rows.get(connection, agent_id)
    visible = row is not None and row.session == AGENT_SESSION and row.project == actor.project
    if row is None or not visible or (actor.role == "member" and row.owner != actor.owner):
        raise NotFoundError(f"Agent {agent_id} not found.")
    return row


def _view(core: ServerContext, row: WorkerRow) -> AgentView:
    has, known = worker_state.capabilities(row.capabilities), core.state(Fleet).agents.get(row.id)
    seen_at = core.state(Fleet).seen_at.get(row.id, row.last_seen_at)
    online = row.status == "online" and seen_at is not None and core.clock.wall() - seen_at < ONLINE_S
    return AgentView(
        agent_id=row.id,
        user_id=row.owner,
        hostname=has.hostname or None,
        platform=has.platform or None,
        version=has.version or None,
        status="online" if online else "offline",
        is_online=online,
        last_poll_at=to_optional_datetime(seen_at),
        registered_at=to_datetime(row.registered_at),
        has_lease=leased(row),
        load=known.load if known else {},
    )
