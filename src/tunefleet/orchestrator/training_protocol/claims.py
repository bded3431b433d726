"""Claim a job: offer and accept in one transaction, so that only one of several agents gets it."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from tunefleet.db import Connection
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import attempts, tasks
from tunefleet.db.rows import AttemptRow, TaskRow, WorkerRow
from tunefleet.errors import ConflictError, ForbiddenError, NotFoundError
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import agents
from tunefleet.orchestrator.fleet.agents import TRAINING_KINDS, Introduction
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.ids import attempt_token, new_ordered_id
from tunefleet.orchestrator.observability.task_spans import attempt_traceparent
from tunefleet.orchestrator.tasks import resume
from tunefleet.orchestrator.tasks.transitions import Move, switch
from tunefleet.orchestrator.training_protocol import offers
from tunefleet.schemas.training_protocol.training import ClaimReply, PolledJob


class JobNotFound(NotFoundError):
    """The job does not exist."""

    protocol_code: ClassVar[str] = "JOB_NOT_FOUND"


class AccessDenied(ForbiddenError):
    """The job belongs to another user."""

    protocol_code: ClassVar[str] = "ACCESS_DENIED"


class AlreadyClaimed(ConflictError):
    """Another agent has already claimed the job."""

    protocol_code: ClassVar[str] = "ALREADY_CLAIMED"


class InvalidStatus(ConflictError):
    """The job is not queued, or this agent cannot run it."""

    protocol_code: ClassVar[str] = "INVALID_STATUS"


async def claim(core: ServerContext, actor: Actor, introduction: Introduction, job_id: str) -> ClaimReply:
    """Claim a job; a repeated claim of the agent that has it returns the same token.

    Raises:
        AccessDenied: If it belongs to another user.
        AlreadyClaimed: If another agent or worker has it.
        InvalidStatus: If it is not queued, or this agent cannot run it.
    """
    await agents.present(core, actor, introduction)
    known = core.state(Fleet).agents[introduction.agent_id]
    attempt_id, job = await core.write(
        partial(
            _claim,
            actor=actor,
            agent_id=introduction.agent_id,
            job_id=job_id,
            leased=known.leased,
            now=core.clock.wall(),
        )
    )
    known.holding.add(job.id)
    return ClaimReply(job_token=attempt_token(core.secret, attempt_id), job=job)


def _claim(
    connection: Connection, *, actor: Actor, agent_id: str, job_id: str, leased: bool, now: float
) -> tuple[str, PolledJob]:
    # The lock makes concurrent claims of two agents sequential: the second one sees the job as taken.
    row = tasks.by_ids(connection, [job_id], lock=True).get(job_id)
    agent = worker_rows.get(connection, agent_id)
    if row is None or agent is None or row.project != actor.project or row.kind not in TRAINING_KINDS:
        raise JobNotFound(f"Job {job_id} not found.")
    owner = agents.served_owner(actor)
    if owner is not None and row.owner != owner:
        raise AccessDenied(f"Job {job_id} belongs to another user.")
    if row.worker_id == agent_id and row.attempt_id and row.status in {TaskStatus.RUNNING, TaskStatus.DISPATCHED}:
        held = offers.polled(connection, row, attempt=row.attempts)
        return row.attempt_id, _traced(connection, held, row.attempt_id)
    _refuse(connection, agent, row, leased=leased, now=now)
    job = offers.polled(connection, row)
    attempt_id = _take(connection, agent, row, now).id
    return attempt_id, _traced(connection, job, attempt_id)


def _traced(connection: Connection, job: PolledJob, attempt_id: str) -> PolledJob:
    known = tasks.traces_of(connection, [job.id]).get(job.id)
    span = attempt_traceparent(None if known is None else known.traceparent, attempt_id)
    return job.model_copy(update={"traceparent": span})


def _refuse(connection: Connection, agent: WorkerRow, row: TaskRow, *, leased: bool, now: float) -> None:
    if row.status in {TaskStatus.DISPATCHED, TaskStatus.RUNNING, TaskStatus.PAUSED}:
        raise AlreadyClaimed(f"Job {row.id} is {row.status} on {row.worker_id}.")
    if row.status != TaskStatus.QUEUED:
        raise InvalidStatus(f"Job {row.id} is {row.status}.")
    if row.ready_at > now:
        raise InvalidStatus(f"Job {row.id} is retried in {row.ready_at - now:.0f} s.")
    why = offers.suits(connection, agent, row, leased=leased, now=now)
    if why is not None:
        raise InvalidStatus(f"This agent cannot run job {row.id}: {why}")


def _take(connection: Connection, agent: WorkerRow, row: TaskRow, now: float) -> AttemptRow:
    number = row.attempts + 1
    attempt = AttemptRow(
        new_ordered_id("att"), row.id, row.seq, number, agent.id, row.kind, row.slot_class, row.requirement_key,
        "accepted", None, None, now, now, None,
    )  # fmt: skip
    attempts.insert_all(connection, [attempt])
    offered = {
        "attempt_id": attempt.id, "attempts": number, "worker_id": agent.id, "desired": "run", "generation": 0,
        "reached": 0, "ready_at": 0.0,
    }  # fmt: skip
    data = {"attempt": number}
    row = switch(connection, [Move(row, TaskReason.OFFERED, changes=offered, data=data)], now)[0]
    started = {"started_at": now, "queue_deadline": None, "error": None}
    switch(connection, [Move(row, TaskReason.STARTED, changes=started, data=data)], now)
    resume.taken(connection, [attempt])
    return attempt
