"""Agents: workers that poll for themselves. Who they are, whether they are there, and forgetting them.

Nothing is pushed to an agent. One that sends heartbeats has a lease like any worker; of one that knows the document's
calls only, polls and reports are the signs of life, so that it is given up much later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from tunefleet.db import Connection, wake
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import events, tasks, training_protocol
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import TaskRow, WorkerRow
from tunefleet.errors import ConflictError, ForbiddenError, InputError
from tunefleet.orchestrator.access.permissions import EXTERNAL, Actor, AttemptActor
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.scheduling import worker_state
from tunefleet.orchestrator.scheduling.cluster_state import Presences
from tunefleet.orchestrator.tasks import resume
from tunefleet.orchestrator.training_protocol.held_attempts import TRAININGS
from tunefleet.orchestrator.workers.presence import AGENT_SESSION, Agent, Presence
from tunefleet.schemas.worker_link import Capabilities, ExecutorOffer

_LEASED: Final = "leased"
_POLLING: Final = "polling"
# An agent without heartbeats that holds jobs is given up after so long without a poll or report.
SILENT_AGENT_S: Final = 900.0
# An agent that was heard of so lately is online.
ONLINE_S: Final = 60.0
# Owner of the fleet's own worker key, the one made at the first start: it takes everybody's jobs.
SHARED_OWNER: Final = "worker"
_MIN_ID: Final = 10
_SLOTS: Final = 64


@dataclass(frozen=True, slots=True)
class Introduction:
    """What an agent's headers say of it."""

    agent_id: str
    hostname: str | None = None
    platform: str | None = None
    version: str | None = None

    @property
    def about(self) -> tuple[str, ...]:
        """What may change from call to call."""
        return (self.hostname or "", self.platform or "", self.version or "")


def served_owner(actor: Actor) -> str | None:
    """Return whose jobs an agent with this key may have; null for everybody's."""
    shared = actor.role == "admin" or (actor.role == "worker" and actor.owner == SHARED_OWNER)
    return None if shared else actor.owner


async def present(
    core: Core, actor: Actor, who: Introduction, capabilities: Capabilities | None = None, *, leased: bool = False
) -> Presence:
    """Count a sign of life of an agent; who is not known, or says something new of itself, is stored.

    Raises:
        InputError: If the id is none.
        ForbiddenError: If it is somebody else's, or a worker's.
    """
    _check(who.agent_id)
    known, presence = core.fleet.agents.get(who.agent_id), core.fleet.presences.get(who.agent_id)
    news = known is None or presence is None or presence.lost or known.owner != actor.owner
    news = news or known is None or known.about != who.about or (leased and not known.leased)
    if news or capabilities is not None:
        operation = partial(_enrol, actor=actor, who=who, has=capabilities, leased=leased, now=core.clock.wall())
        with core.fleet.working_off(who.agent_id):
            row = await core.write(operation)
        known = remember(core, row, who.about)
        presence = core.fleet.presences[row.id]
        presence.lost = False
    assert presence is not None
    assert known is not None
    if known.leased and not presence.limits:
        # It answers, so that a cancel is asked of it; and no slot is free for what would be pushed.
        presence.limits = {"job": 0}
    core.fleet.renew(who.agent_id, presence, core.clock.wall())
    return presence


def _check(agent_id: str) -> None:
    if len(agent_id) < _MIN_ID or len(agent_id) > 128 or not agent_id.isprintable() or "/" in agent_id:
        raise InputError("X-Agent-ID is missing or no agent id.", hint=f"It has {_MIN_ID} to 128 characters.")
    if agent_id.startswith(EXTERNAL):
        raise InputError(f"An agent id does not begin with {EXTERNAL}.")


def remember(core: Core, row: WorkerRow, about: tuple[str, ...] | None = None) -> Agent:
    """Take an agent's row into memory, after a start or a change."""
    has = worker_state.capabilities(row.capabilities)
    known = core.fleet.agents.get(row.id) or Agent(row.owner)
    known.owner, known.leased = row.owner, row.state_id == _LEASED
    known.about = about if about is not None else (has.hostname, has.platform, has.version)
    core.fleet.agents[row.id] = known
    before = core.fleet.presences.get(row.id)
    if before is None or before.session != AGENT_SESSION:
        core.fleet.presences[row.id] = Presence(AGENT_SESSION, lost=row.status != "online", project=row.project)
    return known


def _enrol(
    connection: Connection, *, actor: Actor, who: Introduction, has: Capabilities | None, leased: bool, now: float
) -> WorkerRow:
    before = worker_rows.get(connection, who.agent_id)
    if before is not None:
        refuse_stranger(actor, before)
    if has is None and before is not None and before.state_id == _LEASED:
        text = before.capabilities
    else:
        text = (has or _plain(who)).model_dump_json()
    leased = leased or (before is not None and before.state_id == _LEASED)
    row = WorkerRow(
        id=who.agent_id, project=actor.project, owner=actor.owner, key_id=actor.key_id,
        state_id=_LEASED if leased else _POLLING, session=AGENT_SESSION, status="online", capabilities=text,
        registered_at=before.registered_at if before else now, last_seen_at=now,
    )  # fmt: skip
    worker_rows.put(connection, row)
    if before is None or before.status != "online":
        data = {"hostname": who.hostname or ""}
        events.append(connection, [Event("worker.online", now, worker_id=row.id, data=data, project=row.project)])
    return row


def refuse_stranger(actor: Actor, row: WorkerRow) -> None:
    """Refuse a key that is not of an agent's owner."""
    if row.session != AGENT_SESSION:
        raise ForbiddenError(f"{row.id} is the id of a worker.", hint="Give the agent an id of its own (AGENT_ID).")
    if row.owner != actor.owner or row.project != actor.project:
        raise ForbiddenError(f"The agent id {row.id} belongs to somebody else.", hint="Use another AGENT_ID.")


def _plain(who: Introduction) -> Capabilities:
    """Return what is known of a machine that says nothing of itself: it has nothing that a task could ask for."""
    return Capabilities(
        version=who.version or "",
        hostname=who.hostname or who.agent_id,
        executors=tuple(ExecutorOffer(kind=kind) for kind in TRAININGS),
        slots={"job": _SLOTS},
        cpu_count=0,
        memory_total_bytes=0,
        memory_free_bytes=0,
        disk_free_bytes=0,
        platform=who.platform or "",
    )


async def touch(core: Core, who: AttemptActor) -> None:
    """Count the report of a job as a sign of life of the agent that runs it."""
    if who.worker_id.startswith(EXTERNAL):
        return
    if who.worker_id not in core.fleet.agents:
        row = await core.read(partial(worker_rows.get, worker_id=who.worker_id))
        if row is None or row.session != AGENT_SESSION:
            return
        remember(core, row)
    core.fleet.renew(who.worker_id, core.fleet.presences[who.worker_id], core.clock.wall())


def patience_s(session: str, state_id: str, lost_after_s: float) -> float:
    """Return after how long a silence a worker is given up."""
    return max(SILENT_AGENT_S, lost_after_s) if session == AGENT_SESSION and state_id == _POLLING else lost_after_s


def deaf(connection: Connection, row: TaskRow) -> str | None:
    """Say why nothing can be asked of who runs a task; null if it can."""
    if row.worker_id is None:
        return None
    if row.worker_id.startswith(EXTERNAL):
        return "it was registered by whom it reports for, and nobody carries commands there"
    worker = worker_rows.get(connection, row.worker_id)
    if worker is None or worker.session != AGENT_SESSION or worker.state_id == _LEASED:
        return None
    return f"the agent {row.worker_id} sends no heartbeats, and takes no commands"


def refuse_deaf(connection: Connection, row: TaskRow) -> None:
    """Refuse to ask something of a job whose machine would never hear it."""
    why = deaf(connection, row)
    if why is not None:
        raise ConflictError(f"The job {row.id} cannot be asked from here: {why}.", hint="Do it where the job runs.")


def ask_to_go_on(connection: Connection, row: TaskRow, here: Presences) -> bool:
    """Ask the agent that keeps a paused job to go on with it."""
    if row.worker_id is not None and row.worker_id.startswith(EXTERNAL):
        refuse_deaf(connection, row)
    agent = worker_rows.get(connection, row.worker_id) if row.worker_id is not None else None
    if agent is None or agent.session != AGENT_SESSION or agent.id not in here.limits:
        return False
    if row.desired != "run" or row.generation <= row.reached:
        tasks.desire(connection, row.id, "run")
        events.append(connection, [events.of_task(row, "task.resuming", here.now, {})])
    wake(connection, f"worker:{agent.id}", f"task:{row.id}")
    return True


def give_up(connection: Connection, worker_id: str, now: float) -> None:
    """Put paused jobs that a lost agent was to go on with back into the queue."""
    for row in training_protocol.paused_at(connection, worker_id):
        if row.desired == "run" and row.generation > row.reached:
            resume.go_on(connection, row, now)


def leased(row: WorkerRow) -> bool:
    """Whether an agent renews what it holds by heartbeats."""
    return row.state_id == _LEASED
