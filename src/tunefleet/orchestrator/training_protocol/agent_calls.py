"""Poll, claim and heartbeat: the calls of agents, over the same offers, tokens and wishes as the link's."""

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
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.ids import attempt_token
from tunefleet.orchestrator.tasks import commands as task_commands
from tunefleet.orchestrator.tasks import resume, unreported_ends
from tunefleet.orchestrator.training_protocol import agents, offers
from tunefleet.orchestrator.training_protocol.agents import Introduction
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
class _News:
    """What there is for an agent."""

    job: PolledJob | None
    commands: tuple[AgentCommand, ...]
    drop: tuple[str, ...]
    mine: dict[str, str]
    """Attempts that are the agent's → their tasks."""

    @property
    def keys(self) -> set[str]:
        """Its parts by name."""
        job = {f"job:{self.job.id}:{self.job.attempt}"} if self.job else set()
        return job | {f"command:{each.command_id}" for each in self.commands} | {f"drop:{id_}" for id_ in self.drop}


@dataclass(frozen=True, slots=True)
class _Asker:
    """Who asks for news; a copy, since it is read in the store's threads."""

    agent_id: str
    owner: str | None
    wants: bool
    leased: bool
    holding: frozenset[str]
    heard: frozenset[str]


def _asker(core: Core, who: Introduction, owner: str | None, *, wants: bool) -> _Asker:
    known = core.fleet.agents[who.agent_id]
    return _Asker(who.agent_id, owner, wants, known.leased, frozenset(known.holding), frozenset(known.heard))


async def poll(core: Core, actor: Actor, who: Introduction, *, wait_s: float = 0.0, want: int = 1) -> PollReply:
    """Return a job that an agent may claim, and what its jobs are asked for; hold the call until there is something.

    Args:
        want: How many jobs it has room for; 0 asks for commands only.

    Raises:
        InputError: If the agent id is none.
        ForbiddenError: If it is somebody else's.
    """
    presence = await agents.present(core, actor, who)
    presence.polls += 1
    number, topic = presence.polls, exchange_transaction.topic(who.agent_id)
    if number > 1:
        core.signals.notify(topic)
    began = core.clock.monotonic()
    held_s = min(max(wait_s, 0.0), exchange.hold_s(core))
    topics = (topic, "placement") if want > 0 else (topic,)
    while True:
        seen = {each: core.signals.version(each) for each in topics}
        asker = _asker(core, who, agents.served_owner(actor), wants=want > 0)
        news = await core.read(partial(_look, asker=asker, secret=core.secret, now=core.clock.wall()))
        now = core.clock.monotonic()
        left_s = held_s - (now - began)
        # What was said a moment ago and is not acted on yet is no reason to answer a held call again.
        if left_s <= 0 or presence.worth_saying(news.keys, now) or core.signals.closed:
            break
        await core.signals.wait_any(seen, left_s)
        if presence.polls != number or core.fleet.presences.get(who.agent_id) is not presence:
            return PollReply(wait_s=held_s)
    presence.note(news.keys, core.clock.monotonic())
    core.fleet.renew(who.agent_id, presence, core.clock.wall())
    return PollReply(
        job=news.job,
        poll_interval_seconds=POLL_INTERVAL_S,
        message=None if news.job else "No job waits for this agent.",
        wait_s=held_s or None,
        commands=news.commands,
        drop=news.drop,
    )


def _look(connection: Connection, *, asker: _Asker, secret: bytes, now: float) -> _News:
    row = worker_rows.get(connection, asker.agent_id)
    task = None
    if row is not None and asker.wants:
        task = offers.first(connection, row, owner=asker.owner, leased=asker.leased, now=now)
    mine = attempts.open_of(connection, asker.agent_id)
    commands = _commands(connection, asker.agent_id, mine, secret)
    return _News(
        job=offers.polled(connection, task) if task is not None else None,
        commands=tuple(each for each in commands if each.command_id not in asker.heard),
        drop=_drop(connection, asker.agent_id, asker.holding),
        mine={row.id: row.task_id for row in mine.values() if row.state == "accepted"},
    )


def _commands(
    connection: Connection, agent_id: str, mine: Mapping[str, AttemptRow], secret: bytes
) -> Iterable[AgentCommand]:
    jobs = {attempt_token(secret, row.id): row.task_id for row in mine.values()}
    for command in task_commands.sendable(connection, agent_id, mine, secret):
        yield AgentCommand(
            command_id=command.command_id, command=command.command, job_id=jobs.get(command.token), data=command.data
        )
    for attempt_id, action, generation in attempts.desired(connection, agent_id):
        attempt = mine[attempt_id]
        if action in {"pause", "cancel"}:
            id_ = _wish_id(action, attempt.task_id, attempt.number, generation)
            yield AgentCommand(command_id=id_, command=action, job_id=attempt.task_id)
    for row in training_protocol.paused_at(connection, agent_id):
        if row.desired == "run" and row.generation > row.reached:
            id_ = _wish_id("resume", row.id, row.attempts, row.generation)
            yield AgentCommand(command_id=id_, command="resume", job_id=row.id)


def _wish_id(action: str, task_id: str, attempt: int, generation: int) -> str:
    if action == "pause":
        return pause_id(task_id, attempt, generation)
    return f"{action}-{task_id}-{attempt}-{generation}"


def _drop(connection: Connection, agent_id: str, holding: Iterable[str]) -> tuple[str, ...]:
    """Return which jobs an agent must end: those of theirs that are void, or that were paused and went elsewhere."""
    held = sorted(holding)
    rows = tasks.by_ids(connection, held)
    return tuple(id_ for id_ in held if id_ not in rows or _gone(connection, agent_id, rows[id_]))


def _gone(connection: Connection, agent_id: str, row: TaskRow) -> bool:
    mine = [attempt for attempt in attempts.of_task(connection, row) if attempt.worker_id == agent_id]
    if not mine:
        # It may report for a job that was registered for it; that one has no lease.
        return not (row.worker_id or "").startswith(EXTERNAL)
    last = mine[-1]
    if last.state == "void":
        return True
    left = last.state == "finished" and last.reason == TaskReason.PAUSED.value
    return left and not (row.status == TaskStatus.PAUSED and row.attempt_id == last.id)


async def heartbeat(core: Core, actor: Actor, who: Introduction, beat: Heartbeat) -> HeartbeatReply:
    """Renew the lease of what an agent holds, take its outcomes, and say what its jobs are asked for.

    Raises:
        InputError: If the agent id is none.
        ForbiddenError: If it is somebody else's.
    """
    presence = await agents.present(core, actor, who, beat.capabilities, leased=True)
    known = core.fleet.agents[who.agent_id]
    known.holding, known.load = set(beat.holding), beat.load
    resumes = {each.command_id for each in beat.outcomes if each.command_id.startswith("resume-")}
    known.heard = (known.heard if len(known.heard) < _MAX_HEARD else set()) | resumes
    if beat.outcomes:
        await core.write(partial(_take_outcomes, agent_id=who.agent_id, outcomes=beat.outcomes, now=core.clock.wall()))
    asker = _asker(core, who, None, wants=False)
    news = await core.read(partial(_look, asker=asker, secret=core.secret, now=core.clock.wall()))
    await _lose_unheld(core, who.agent_id, news.mine)
    presence.note(news.keys | {key for key in presence.said if key.startswith("job:")}, core.clock.monotonic())
    return HeartbeatReply(
        lease_s=core.settings.lost_after_s,
        commands=news.commands,
        drop=news.drop,
        outcomes=tuple(outcome.command_id for outcome in beat.outcomes),
    )


async def _lose_unheld(core: Core, agent_id: str, mine: Mapping[str, str]) -> None:
    """Give up attempts that an agent has not named for a while: it never heard that its claim was taken."""
    known, now = core.fleet.agents[agent_id], core.clock.monotonic()
    known.missed = {
        attempt_id: known.missed.get(attempt_id, now)
        for attempt_id, task_id in mine.items()
        if task_id not in known.holding
    }
    # A claim may be answered while a heartbeat is under way that does not know of it yet.
    over = [id_ for id_, since in known.missed.items() if now - since > core.settings.accept_within_s]
    if over:
        await core.write(partial(_lose, agent_id=agent_id, attempt_ids=over, now=core.clock.wall()))


def _lose(connection: Connection, *, agent_id: str, attempt_ids: Sequence[str], now: float) -> None:
    mine = attempts.open_of(connection, agent_id)
    gone = [mine[id_] for id_ in attempt_ids if id_ in mine and mine[id_].state == "accepted"]
    unreported_ends.end(
        connection, [(row, TaskReason.WORKER_LOST, "The agent does not have the task.") for row in gone], now
    )


def _take_outcomes(connection: Connection, *, agent_id: str, outcomes: tuple[AgentOutcome, ...], now: float) -> None:
    mine = attempts.open_of(connection, agent_id)
    rows = attempts.tasks_of(connection, agent_id)
    _reach(connection, agent_id, {outcome.command_id for outcome in outcomes}, mine)
    _refused_resumes(connection, agent_id, outcomes, now)
    task_commands.take_outcomes(connection, [_outcome(each) for each in outcomes], agent_id, mine, rows, now)
    wake(connection, exchange_transaction.topic(agent_id))


def _reach(connection: Connection, agent_id: str, said: set[str], mine: dict[str, AttemptRow]) -> None:
    """Note which wishes an agent has heard; a resume is reached when the job runs."""
    tasks.set_reached(
        connection,
        [
            (mine[attempt_id].task_id, generation)
            for attempt_id, action, generation in attempts.desired(connection, agent_id)
            if _wish_id(action, mine[attempt_id].task_id, mine[attempt_id].number, generation) in said
        ],
    )


def _refused_resumes(connection: Connection, agent_id: str, outcomes: tuple[AgentOutcome, ...], now: float) -> None:
    """Put a job that its agent cannot go on with back into the queue, if that can be; it stays paused otherwise."""
    failed = {outcome.command_id for outcome in outcomes if outcome.state == "failed"}
    for row in training_protocol.paused_at(connection, agent_id):
        wish = _wish_id("resume", row.id, row.attempts, row.generation)
        if row.desired == "run" and row.generation > row.reached and wish in failed:
            resume.go_on(connection, row, now)


def _outcome(said: AgentOutcome) -> CommandOutcome:
    return CommandOutcome(
        command_id=said.command_id,
        state=said.state,
        step=said.step,
        message=said.message,
        checkpoint=said.checkpoint,
        result=said.data or None,
    )
