"""Agents: workers that only poll. Registration, liveness and removal.

Nothing is pushed to an agent. One that sends heartbeats has a lease like any worker. For one that supports only the
protocol's basic calls, polls and reports count as signs of life, so that it is considered lost much later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import events
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import TaskRow, WorkerRow
from tunefleet.errors import ConflictError, ForbiddenError, InputError
from tunefleet.orchestrator.access.permissions import EXTERNAL, Actor, AttemptActor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import worker_state
from tunefleet.orchestrator.fleet.presence import AGENT_SESSION, Agent, Fleet, Presence
from tunefleet.schemas.worker_link import Capabilities, ExecutorOffer

_LEASED: Final = "leased"
_POLLING: Final = "polling"
# An agent without heartbeats that has jobs is considered lost after this time without a poll or report.
SILENT_AGENT_S: Final = 900.0
# An agent with a call within this time is online.
ONLINE_S: Final = 60.0
# Owner of the fleet's own worker key, created at the first start: its agents take jobs of all owners.
SHARED_OWNER: Final = "worker"
_MIN_ID: Final = 10
_SLOTS: Final = 64
# The task kinds that are jobs of this protocol.
TRAINING_KINDS: Final = ("sft", "lora_sft")


@dataclass(frozen=True, slots=True)
class Introduction:
    """An agent's self-description, from its headers."""

    agent_id: str
    hostname: str | None = None
    platform: str | None = None
    version: str | None = None

    @property
    def about(self) -> tuple[str, ...]:
        """The fields that may change between calls."""
        return (self.hostname or "", self.platform or "", self.version or "")


def served_owner(actor: Actor) -> str | None:
    """Return the owner whose jobs an agent with this key may take; None for all owners."""
    shared = actor.role == "admin" or (actor.role == "worker" and actor.owner == SHARED_OWNER)
    return None if shared else actor.owner


async def present(
    core: ServerContext,
    actor: Actor,
    introduction: Introduction,
    capabilities: Capabilities | None = None,
    *,
    leased: bool = False,
) -> Presence:
    """Record a sign of life of an agent; a new or changed agent is stored.

    Raises:
        InputError: If the id is not valid.
        ForbiddenError: If it belongs to another user or to a worker.
    """
    _check(introduction.agent_id)
    known, presence = (
        core.state(Fleet).agents.get(introduction.agent_id),
        core.state(Fleet).presences.get(introduction.agent_id),
    )
    changed = known is None or presence is None or presence.lost or known.owner != actor.owner
    changed = changed or known is None or known.about != introduction.about or (leased and not known.leased)
    if changed or capabilities is not None:
        operation = partial(
            _register, actor=actor, introduction=introduction, has=capabilities, leased=leased, now=core.clock.wall()
        )
        with core.state(Fleet).processing(introduction.agent_id):
            row = await core.write(operation)
        known = remember(core, row, introduction.about)
        presence = core.state(Fleet).presences[row.id]
        presence.lost = False
    assert presence is not None
    assert known is not None
    if known.leased and not presence.limits:
        # Present, so that a cancel is sent to it; without free slots, so that nothing is pushed to it.
        presence.limits = {"job": 0}
    core.state(Fleet).renew(introduction.agent_id, presence, core.clock.wall())
    return presence


def _check(agent_id: str) -> None:
    if len(agent_id) < _MIN_ID or len(agent_id) > 128 or not agent_id.isprintable() or "/" in agent_id:
        raise InputError("X-Agent-ID is missing or not valid.", hint=f"Use {_MIN_ID} to 128 characters.")
    if agent_id.startswith(EXTERNAL):
        raise InputError(f"An agent id must not start with {EXTERNAL}.")


def remember(core: ServerContext, row: WorkerRow, about: tuple[str, ...] | None = None) -> Agent:
    """Load an agent's row into memory, after a start or a change."""
    has = worker_state.capabilities(row.capabilities)
    known = core.state(Fleet).agents.get(row.id) or Agent(row.owner)
    known.owner, known.leased = row.owner, row.state_id == _LEASED
    known.about = about if about is not None else (has.hostname, has.platform, has.version)
    core.state(Fleet).agents[row.id] = known
    before = core.state(Fleet).presences.get(row.id)
    if before is None or before.session != AGENT_SESSION:
        core.state(Fleet).presences[row.id] = Presence(AGENT_SESSION, lost=row.status != "online", project=row.project)
    return known


def _register(
    connection: Connection,
    *,
    actor: Actor,
    introduction: Introduction,
    has: Capabilities | None,
    leased: bool,
    now: float,
) -> WorkerRow:
    before = worker_rows.get(connection, introduction.agent_id)
    if before is not None:
        refuse_stranger(actor, before)
    if has is None and before is not None and before.state_id == _LEASED:
        text = before.capabilities
    else:
        text = (has or _plain(introduction)).model_dump_json()
    leased = leased or (before is not None and before.state_id == _LEASED)
    row = WorkerRow(
        id=introduction.agent_id, project=actor.project, owner=actor.owner, key_id=actor.key_id,
        state_id=_LEASED if leased else _POLLING, session=AGENT_SESSION, status="online", capabilities=text,
        registered_at=before.registered_at if before else now, last_seen_at=now,
    )  # fmt: skip
    worker_rows.put(connection, row)
    if before is None or before.status != "online":
        data = {"hostname": introduction.hostname or ""}
        events.append(connection, [Event("worker.online", now, worker_id=row.id, data=data, project=row.project)])
    return row


def refuse_stranger(actor: Actor, row: WorkerRow) -> None:
    """Raise if a key does not belong to the agent's owner."""
    if row.session != AGENT_SESSION:
        raise ForbiddenError(f"{row.id} is the id of a worker.", hint="Set a unique TUNEFLEET_AGENT_ID.")
    if row.owner != actor.owner or row.project != actor.project:
        raise ForbiddenError(f"Agent id {row.id} belongs to another user.", hint="Use another TUNEFLEET_AGENT_ID.")


def _plain(introduction: Introduction) -> Capabilities:
    """Return the capabilities of an agent that reports none: no resources that a task could request."""
    return Capabilities(
        version=introduction.version or "",
        hostname=introduction.hostname or introduction.agent_id,
        executors=tuple(ExecutorOffer(kind=kind) for kind in TRAINING_KINDS),
        # An agent decides itself how many jobs it takes; this only has to be enough.
        slots={"job": _SLOTS},
        cpu_count=0,
        memory_total_bytes=0,
        memory_free_bytes=0,
        disk_free_bytes=0,
        platform=introduction.platform or "",
    )


async def touch(core: ServerContext, actor: AttemptActor) -> None:
    """Record the report of a job as a sign of life of its agent."""
    if actor.worker_id.startswith(EXTERNAL):
        return
    if actor.worker_id not in core.state(Fleet).agents:
        row = await core.read(partial(worker_rows.get, worker_id=actor.worker_id))
        if row is None or row.session != AGENT_SESSION:
            return
        remember(core, row)
    core.state(Fleet).renew(actor.worker_id, core.state(Fleet).presences[actor.worker_id], core.clock.wall())


def patience_s(session: str, state_id: str, lost_after_s: float) -> float:
    """Return the silence in seconds after which a worker is considered lost."""
    return max(SILENT_AGENT_S, lost_after_s) if session == AGENT_SESSION and state_id == _POLLING else lost_after_s


def why_unreachable(connection: Connection, row: TaskRow) -> str | None:
    """Return why the runner of a task cannot receive commands; None if it can."""
    if row.worker_id is None:
        return None
    if row.worker_id.startswith(EXTERNAL):
        return "it is a registered job, whose machine receives no commands"
    worker = worker_rows.get(connection, row.worker_id)
    if worker is None or worker.session != AGENT_SESSION or worker.state_id == _LEASED:
        return None
    return f"the agent {row.worker_id} sends no heartbeats, and receives no commands"


def refuse_unreachable(connection: Connection, row: TaskRow) -> None:
    """Raise if a job's machine cannot receive commands."""
    why = why_unreachable(connection, row)
    if why is not None:
        raise ConflictError(
            f"Job {row.id} cannot be controlled from here: {why}.", hint="Use the machine where the job runs."
        )


def leased(row: WorkerRow) -> bool:
    """Whether an agent renews its leases by heartbeats."""
    return row.state_id == _LEASED
