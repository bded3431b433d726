"""Job selection for agents: the first job in the queue that an agent may take and can run."""

from __future__ import annotations

from typing import Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.access import project_rows
from tunefleet.db.repositories import attempts, queue, shards, tasks, training_protocol
from tunefleet.db.repositories.attempts import OfferRow
from tunefleet.db.rows import TaskRow, WorkerRow
from tunefleet.orchestrator.access.quotas import QuotaChecks
from tunefleet.orchestrator.fleet import cluster_state, worker_state
from tunefleet.orchestrator.fleet.agents import TRAINING_KINDS
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.tasks import resume
from tunefleet.orchestrator.training_protocol.job_config import config_of, dataset_path
from tunefleet.orchestrator.views import to_datetime
from tunefleet.placement import Fit, WorkerState, match
from tunefleet.schemas.training_protocol.training import PolledJob
from tunefleet.spec import TrainingTaskSpec, load_task_spec

# Number of queued tasks per need that one poll examines.
_EXAMINED: Final = 32


def first(connection: Connection, agent: WorkerRow, *, owner: str | None, leased: bool, now: float) -> TaskRow | None:
    """Return the first queued task that an agent may take and can run.

    Args:
        owner: Only tasks of this owner; None for all owners.
    """
    state, held = _state(connection, agent, now), QuotaChecks(connection, now)
    found: list[TaskRow] = []
    for key, need in cluster_state.needs(connection, queue.groups(connection)).items():
        if need.kind not in TRAINING_KINDS or not isinstance(match(need, state), Fit):
            continue
        if held.why(agent.project, need) is not None:
            continue
        rows = training_protocol.waiting(connection, key, project=agent.project, owner=owner, now=now, limit=_EXAMINED)
        allowed = (row for row in rows if refusal(connection, agent, row, leased=leased) is None)
        found += [row for _, row in zip(range(1), allowed, strict=False)]
    return min(found, key=lambda row: row.rank) if found else None


def suits(connection: Connection, agent: WorkerRow, row: TaskRow, *, leased: bool, now: float) -> str | None:
    """Return why an agent cannot run a task; None if it can."""
    state = _state(connection, agent, now)
    need = cluster_state.needs(connection, [row.requirement_key])[row.requirement_key]
    result = match(need, state)
    if not isinstance(result, Fit):
        return f"This agent {result.reason}."
    # Two servers could each count the project's running tasks and both exceed its quota.
    project_rows.lock(connection, [row.project])
    over = QuotaChecks(connection, now).why(row.project, need)
    if over is not None:
        return over
    return refusal(connection, agent, row, leased=leased)


def refusal(connection: Connection, agent: WorkerRow, row: TaskRow, *, leased: bool) -> str | None:
    """Return why a task is not for an agent regardless of resources; None if it is."""
    where = attempts.resumes_of(connection, [row.id]).get(row.id)
    if where is not None and where.bound and where.worker_id != agent.id:
        return f"It resumes from a checkpoint that only {where.worker_id} has."
    if shards.of_tasks(connection, [row.seq]):
        return "It is a shard of a federated run, which agents do not support."
    if leased:
        return None
    if tasks.document(connection, row).inputs != "{}":
        return "It needs uploaded files, which an agent without heartbeats cannot fetch."
    return None


def polled(connection: Connection, row: TaskRow, *, attempt: int | None = None) -> PolledJob:
    """Return a task as a job for an agent."""
    document = tasks.document(connection, row)
    raw = orjson.loads(document.as_run)
    spec = load_task_spec(raw)
    assert isinstance(spec, TrainingTaskSpec), "only training tasks are offered"
    number = attempt or row.attempts + 1
    offer = OfferRow("", number, row.slot_class, row.id, row.workflow_id, row.kind, row.name, "", "")
    return PolledJob(
        id=row.id,
        model_name=spec.model.source.identifier,
        dataset_path=dataset_path(spec),
        config=config_of(spec),
        total_epochs=max(1, round(spec.training.num_train_epochs)),
        total_steps=spec.training.max_steps,
        created_at=to_datetime(row.created_at),
        name=row.name,
        kind=row.kind,
        spec=raw,
        inputs=orjson.loads(document.inputs),
        attempt=number,
        resume=resume.for_offers(connection, [offer]).get(row.id),
    )


def _state(connection: Connection, agent: WorkerRow, now: float) -> WorkerState:
    # A polling agent is present by definition; only its slots limit how many jobs it gets.
    slots = worker_state.capabilities(agent.capabilities).slots
    snapshot = FleetSnapshot(now, {agent.id: {str(name): count for name, count in slots.items()}})
    return cluster_state.state_of(connection, snapshot, agent)
