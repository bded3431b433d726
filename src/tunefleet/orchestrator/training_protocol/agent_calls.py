"""Poll and heartbeat of agents, over the same offers, tokens and desired states as a worker's exchange."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tunefleet.db import Connection, wake
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import attempts, tasks, training_protocol
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.access.permissions import EXTERNAL, Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import agents
from tunefleet.orchestrator.fleet.agents import Introduction
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.ids import attempt_token
from tunefleet.orchestrator.tasks import commands as task_commands
from tunefleet.orchestrator.tasks import resume, unreported_ends
from tunefleet.orchestrator.training_protocol import offers
from tunefleet.orchestrator.workers import exchange, exchange_transaction
from tunefleet.schemas.training_protocol.training import (
    AgentCommand,
    AgentOutcome,
    Heartbeat,
    HeartbeatReply,
    PolledJob,
    PollReply,
)
from tunefleet.schemas.worker_link import CommandOutcome, pause_id

POLL_INTERVAL_S: Final = 10
_MAX_HEARD: Final = 1000


@dataclass(frozen=True, slots=True)
class _AgentUpdate:
    """A job and commands for an agent."""

    job: PolledJob | None
    commands: tuple[AgentCommand, ...]
    drop: tuple[str, ...]
    open_attempts: dict[str, str]
    """The agent's accepted attempts → their tasks."""

    @property
    def keys(self) -> set[str]:
        """One key for each job, command and drop, to detect repetitions."""
        job = {f"job:{self.job.id}:{self.job.attempt}"} if self.job else set()
        return job | {f"command:{each.command_id}" for each in self.commands} | {f"drop:{id_}" for id_ in self.drop}


@dataclass(frozen=True, slots=True)
class _PollingAgent:
    """The polling agent; a copy, because it is read in database threads."""

    agent_id: str
    owner: str | None
    wants: bool
    leased: bool
    holding: frozenset[str]
    heard: frozenset[str]


def _polling_agent(core: ServerContext, introduction: Introduction, owner: str | None, *, wants: bool) -> _PollingAgent:
    known = core.state(Fleet).agents[introduction.agent_id]
    return _PollingAgent(
        introduction.agent_id, owner, wants, known.leased, frozenset(known.holding), frozenset(known.heard)
    )


async def poll(
    core: ServerContext, actor: Actor, introduction: Introduction, *, wait_s: float = 0.0, want: int = 1
) -> PollReply:
    """Return a job that an agent may claim, and commands for its jobs; a long poll.

    Args:
        want: Number of jobs that the agent can take; 0 for commands only.

    Raises:
        InputError: If the agent id is not valid.
        ForbiddenError: If it belongs to another user.
    """
    presence = await agents.present(core, actor, introduction)
    presence.polls += 1
    number, topic = presence.polls, exchange_transaction.topic(introduction.agent_id)
    if number > 1:
        # Ends an older poll of the same agent that is still held: it may have lost its connection.
        core.signals.notify(topic)
    began = core.clock.monotonic()
    held_s = min(max(wait_s, 0.0), exchange.hold_s(core))
    topics = (topic, "placement") if want > 0 else (topic,)
    while True:
        seen = {each: core.signals.version(each) for each in topics}
        asker = _polling_agent(core, introduction, agents.served_owner(actor), wants=want > 0)
        news = await core.read(partial(_load_update, asker=asker, secret=core.secret, now=core.clock.wall()))
        now = core.clock.monotonic()
        left_s = held_s - (now - began)
        # Entries that were just sent and are not acted on yet do not end a held call: the agent would poll in a busy
        # loop.
        if left_s <= 0 or presence.has_unsent(news.keys, now) or core.signals.closed:
            break
        await core.signals.wait_any(seen, left_s)
        # A newer poll of the same agent has replaced this one.
        if presence.polls != number or core.state(Fleet).presences.get(introduction.agent_id) is not presence:
            return PollReply(wait_s=held_s)
    presence.record_sent(news.keys, core.clock.monotonic())
    core.state(Fleet).renew(introduction.agent_id, presence, core.clock.wall())
    return PollReply(
        job=news.job,
        poll_interval_seconds=POLL_INTERVAL_S,
        message=None if news.job else "No jobs for this agent.",
        wait_s=held_s or None,
        commands=news.commands,
        drop=news.drop,
    )


def _load_update(connection: Connection, *, asker: _PollingAgent, secret: bytes, now: float) -> _AgentUpdate:
    row = worker_rows.get(connection, asker.agent_id)
    task = None
    if row is not None and asker.wants:
        task = offers.first(connection, row, owner=asker.owner, leased=asker.leased, now=now)
    open_attempts = attempts.open_of(connection, asker.agent_id)
    commands = _commands(connection, asker.agent_id, open_attempts, secret)
    return _AgentUpdate(
        job=offers.polled(connection, task) if task is not None else None,
        commands=tuple(each for each in commands if each.command_id not in asker.heard),
        drop=_drop(connection, asker.agent_id, asker.holding),
        open_attempts={row.id: row.task_id for row in open_attempts.values() if row.state == "accepted"},
    )


def _commands(
    connection: Connection, agent_id: str, open_attempts: Mapping[str, AttemptRow], secret: bytes
) -> Iterable[AgentCommand]:
    jobs = {attempt_token(secret, row.id): row.task_id for row in open_attempts.values()}
    for command in task_commands.sendable(connection, agent_id, open_attempts, secret):
        yield AgentCommand(
            command_id=command.command_id, command=command.command, job_id=jobs.get(command.token), data=command.data
        )
    for attempt_id, action, generation in attempts.desired(connection, agent_id):
        attempt = open_attempts[attempt_id]
        if action in {"pause", "cancel"}:
            id_ = _desired_state_id(action, attempt.task_id, attempt.number, generation)
            yield AgentCommand(command_id=id_, command=action, job_id=attempt.task_id)
    for row in training_protocol.paused_at(connection, agent_id):
        if row.desired == "run" and row.generation > row.reached:
            id_ = _desired_state_id("resume", row.id, row.attempts, row.generation)
            yield AgentCommand(command_id=id_, command="resume", job_id=row.id)


def _desired_state_id(action: str, task_id: str, attempt: int, generation: int) -> str:
    if action == "pause":
        return pause_id(task_id, attempt, generation)
    return f"{action}-{task_id}-{attempt}-{generation}"


def _drop(connection: Connection, agent_id: str, holding: Iterable[str]) -> tuple[str, ...]:
    """Return the jobs that an agent must stop: revoked ones, and paused ones that were moved elsewhere."""
    held = sorted(holding)
    rows = tasks.by_ids(connection, held)
    return tuple(id_ for id_ in held if id_ not in rows or _gone(connection, agent_id, rows[id_]))


def _gone(connection: Connection, agent_id: str, row: TaskRow) -> bool:
    open_attempts = [attempt for attempt in attempts.of_task(connection, row) if attempt.worker_id == agent_id]
    if not open_attempts:
        # It may report for a registered job, which has no lease.
        return not (row.worker_id or "").startswith(EXTERNAL)
    last = open_attempts[-1]
    if last.state == "void":
        return True
    left = last.state == "finished" and last.reason == TaskReason.PAUSED.value
    return left and not (row.status == TaskStatus.PAUSED and row.attempt_id == last.id)


async def heartbeat(core: ServerContext, actor: Actor, introduction: Introduction, beat: Heartbeat) -> HeartbeatReply:
    """Renew the leases of an agent's jobs, store its outcomes, and return commands for its jobs.

    Raises:
        InputError: If the agent id is not valid.
        ForbiddenError: If it belongs to another user.
    """
    presence = await agents.present(core, actor, introduction, beat.capabilities, leased=True)
    known = core.state(Fleet).agents[introduction.agent_id]
    known.holding, known.load = set(beat.holding), beat.load
    resumes = {each.command_id for each in beat.outcomes if each.command_id.startswith("resume-")}
    # Bounded: an agent that never restarts would collect command ids without end.
    known.heard = (known.heard if len(known.heard) < _MAX_HEARD else set()) | resumes
    if beat.outcomes:
        await core.write(
            partial(_take_outcomes, agent_id=introduction.agent_id, outcomes=beat.outcomes, now=core.clock.wall())
        )
    asker = _polling_agent(core, introduction, None, wants=False)
    news = await core.read(partial(_load_update, asker=asker, secret=core.secret, now=core.clock.wall()))
    await _lose_unheld(core, introduction.agent_id, news.open_attempts)
    presence.record_sent(
        news.keys | {key for key in presence.sent_at if key.startswith("job:")}, core.clock.monotonic()
    )
    return HeartbeatReply(
        lease_s=core.settings.lost_after_s,
        commands=news.commands,
        drop=news.drop,
        outcomes=tuple(outcome.command_id for outcome in beat.outcomes),
    )


async def _lose_unheld(core: ServerContext, agent_id: str, open_attempts: Mapping[str, str]) -> None:
    """Give up attempts that an agent has not reported for a while: the response to its claim was lost."""
    known, now = core.state(Fleet).agents[agent_id], core.clock.monotonic()
    known.missed = {
        attempt_id: known.missed.get(attempt_id, now)
        for attempt_id, task_id in open_attempts.items()
        if task_id not in known.holding
    }
    # Not immediately: a heartbeat that was sent before the claim's response does not include the job yet.
    over = [id_ for id_, since in known.missed.items() if now - since > core.settings.accept_within_s]
    if over:
        await core.write(partial(_lose, agent_id=agent_id, attempt_ids=over, now=core.clock.wall()))


def _lose(connection: Connection, *, agent_id: str, attempt_ids: Sequence[str], now: float) -> None:
    open_attempts = attempts.open_of(connection, agent_id)
    gone = [
        open_attempts[id_] for id_ in attempt_ids if id_ in open_attempts and open_attempts[id_].state == "accepted"
    ]
    unreported_ends.end(
        connection, [(row, TaskReason.WORKER_LOST, "The agent does not have the task.") for row in gone], now
    )


def _take_outcomes(connection: Connection, *, agent_id: str, outcomes: tuple[AgentOutcome, ...], now: float) -> None:
    open_attempts = attempts.open_of(connection, agent_id)
    rows = attempts.tasks_of(connection, agent_id)
    _reach(connection, agent_id, {outcome.command_id for outcome in outcomes}, open_attempts)
    _refused_resumes(connection, agent_id, outcomes, now)
    task_commands.take_outcomes(connection, [_outcome(each) for each in outcomes], agent_id, open_attempts, rows, now)
    wake(connection, exchange_transaction.topic(agent_id))


def _reach(connection: Connection, agent_id: str, acknowledged: set[str], open_attempts: dict[str, AttemptRow]) -> None:
    """Record which desired states an agent has acknowledged; a resume is reached when the job runs."""
    tasks.set_reached(
        connection,
        [
            (open_attempts[attempt_id].task_id, generation)
            for attempt_id, action, generation in attempts.desired(connection, agent_id)
            if _desired_state_id(
                action, open_attempts[attempt_id].task_id, open_attempts[attempt_id].number, generation
            )
            in acknowledged
        ],
    )


def _refused_resumes(connection: Connection, agent_id: str, outcomes: tuple[AgentOutcome, ...], now: float) -> None:
    """Requeue a paused job that its agent cannot resume, if possible; otherwise it stays paused."""
    failed = {outcome.command_id for outcome in outcomes if outcome.state == "failed"}
    for row in training_protocol.paused_at(connection, agent_id):
        command_id = _desired_state_id("resume", row.id, row.attempts, row.generation)
        if row.desired == "run" and row.generation > row.reached and command_id in failed:
            resume.requeue_resumed(connection, row, now)


def _outcome(reported: AgentOutcome) -> CommandOutcome:
    return CommandOutcome(
        command_id=reported.command_id,
        state=reported.state,
        step=reported.step,
        message=reported.message,
        checkpoint=reported.checkpoint,
        result=reported.data or None,
    )
