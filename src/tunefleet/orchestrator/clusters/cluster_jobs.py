"""State of cluster jobs: create, update and end them with everything that belongs to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import orjson

from tunefleet.db import Connection, wake
from tunefleet.db.access import keys as key_rows
from tunefleet.db.fleet import clusters, worker_rows
from tunefleet.db.fleet.clusters import ClusterJobRow
from tunefleet.db.repositories import attempts, commands, events, tasks
from tunefleet.db.rows import TaskRow
from tunefleet.errors import TunefleetError
from tunefleet.integrations.clusters import ClusterJobState, NodeRequest
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.access.permissions import KEYS
from tunefleet.orchestrator.clusters.policy import BARREN, Step, needs_nodes
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.ids import hash_secret, new_secret
from tunefleet.orchestrator.tasks import spec_columns, unreported_ends
from tunefleet.orchestrator.tasks.transitions import Move, switch
from tunefleet.placement import Requirement


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that is stored, but not submitted to the cluster yet."""

    row: ClusterJobRow
    need: Requirement
    options: Mapping[str, str]
    secret: str

    def node_request(self, environment: Mapping[str, str], command: tuple[str, ...], patience_s: float) -> NodeRequest:
        """Return the request to the cluster."""
        need = self.need
        gpus = 0 if need.gpu_optional else need.gpu_count
        return NodeRequest(
            self.row.name, need.nodes, need.nodes_max, command, {**environment, "TUNEFLEET_WORKER_KEY": self.secret},
            cpu=need.cpu, memory_bytes=need.memory_bytes, gpu_count=gpus, gpu_type=need.gpu_type if gpus else None,
            options=self.options, patience_s=patience_s,
        )  # fmt: skip


def create(connection: Connection, task_id: str, engine: str, now: float) -> NewJob | None:
    """Store the next job of a task; None if the task no longer needs one, or has failed here.

    The task fails after `BARREN` jobs in a row of which no worker took it.
    """
    task = tasks.by_ids(connection, [task_id], lock=True).get(task_id)
    if task is None or task.status != TaskStatus.QUEUED:
        return None
    before = clusters.of_task(connection, task.seq)
    if any(job.live for job in before):
        return None
    barren = before[-BARREN:]
    if len(barren) == BARREN and all(job.barren for job in barren):
        last = barren[-1].told
        fail_task(
            connection, task, engine, f"{BARREN} jobs ended before a worker took the task; of the last one: {last}", now
        )
        return None
    engine_spec = spec_columns.so_far(orjson.loads(tasks.document(connection, task).spec))[0].engine
    need = cluster_state.needs(connection, [task.requirement_key])[task.requirement_key]
    number = before[-1].number + 1 if before else 1
    name, secret = f"tunefleet-{task.id}-{number}", new_secret()
    key = api_keys.insert(
        connection, project=task.project, name=name, role="worker", owner=name, secret_hash=hash_secret(secret), now=now
    )  # an owner of its own: with the task owner's key the worker could take the owner's other jobs
    row = ClusterJobRow(name, task.seq, task.id, engine, number, need.nodes, "submitting", key.id, now)
    clusters.insert_one(connection, row)
    return NewJob(row, need, {} if engine_spec is None else engine_spec.options, secret)


def record_submission(connection: Connection, job: ClusterJobRow, job_id: str, now: float) -> None:
    """Record that the cluster has accepted a job."""
    clusters.change(connection, job.name, state="waiting", job_id=job_id, told="just submitted")
    _publish_message(connection, job, f"Requested {_nodes(job)} from {job.engine}: job {job_id}.", now)


def record_state(
    connection: Connection, job: ClusterJobRow, seen: ClusterJobState, reason: str | None, now: float
) -> None:
    """Record that a job is waiting or running."""
    if seen.stage == "running":
        clusters.change(
            connection, job.name, state="running", job_id=seen.job_id, told=None, running_at=now, used=job.used
        )
        _publish_message(connection, job, f"Job {seen.job_id} of {job.engine} has its {_nodes(job)}.", now)
    elif (job.state, job.told) != ("waiting", reason):
        clusters.change(connection, job.name, state="waiting", job_id=seen.job_id, told=reason, running_at=None)


def record_use(connection: Connection, names: Iterable[str]) -> None:
    """Record the jobs of which a worker has taken the task."""
    for name in names:
        clusters.change(connection, name, used=1)


def record_unconfirmed(connection: Connection, job: ClusterJobRow, error: TunefleetError) -> None:
    """Record why it is unknown whether the cluster has accepted a job; the next polls find out."""
    clusters.change(connection, job.name, told=str(error))


def drain(connection: Connection, job: ClusterJobRow, step: Step, now: float) -> None:
    """Drain the workers of a job: they finish their work and exit, and the job ends with them."""
    clusters.change(
        connection, job.name, state="leaving", leaving_at=job.leaving_at or now, told=step.reason or job.told,
        barren=max(int(step.barren), job.barren),
    )  # fmt: skip
    for worker_id in clusters.workers_by_key(connection, [job.key_id]).get(job.key_id, []):
        known = worker_rows.controls_of(connection, worker_id)
        if not known.drains:
            worker_rows.put_controls(connection, known._replace(drains=1))


def record_end(connection: Connection, job: ClusterJobRow, reason: str | None, now: float) -> list[str]:
    """Record that a job has ended: delete its key and workers, and reschedule what they held."""
    task = tasks.by_ids(connection, [job.task_id]).get(job.task_id)
    begun = job.state in {"waiting", "running"}
    waited = begun and task is not None and needs_nodes(task.status)
    clusters.change(
        connection, job.name, state="ended", ended_at=now, told=reason or job.told, used=job.used,
        barren=int(bool(job.barren) or (waited and not job.used)),
    )  # fmt: skip
    # Deleted with the job, so that a worker that is still running can no longer connect.
    key_rows.delete_one(connection, job.key_id)
    gone = clusters.workers_by_key(connection, [job.key_id]).get(job.key_id, [])
    for worker_id in gone:
        lost = [
            (
                each,
                TaskReason.WORKER_LOST if each.state == "accepted" else TaskReason.NOT_ACCEPTED,
                _end_message(job, reason),
            )
            for each in attempts.open_of(connection, worker_id).values()
        ]
        unreported_ends.end(connection, lost, now)
        worker_rows.remove(connection, worker_id)
        commands.delete_of_worker(connection, worker_id)
        worker_rows.forget_controls(connection, worker_id)
    if task is not None:
        _publish_message(connection, job, _end_message(job, reason), now)
    else:
        clusters.delete_one(connection, job.name)
    # Other servers cache keys, and the scheduler can reschedule what the workers held.
    wake(connection, KEYS, "placement", clusters.TOPIC)
    return gone


def fail_task(connection: Connection, task: TaskRow, engine: str, reason: str, now: float) -> None:
    """Fail a queued task that cannot get nodes."""
    error = f"{engine} has no nodes for it: {reason.rstrip('.')}."
    switch(connection, [Move(task, TaskReason.NO_NODES, changes={"error": error})], now)


def record_rejection(connection: Connection, job: ClusterJobRow, error: TunefleetError, now: float) -> None:
    """Fail the task of a job that the cluster rejects."""
    record_end(connection, job, str(error), now)
    task = tasks.by_ids(connection, [job.task_id], lock=True).get(job.task_id)
    if task is not None and task.status == TaskStatus.QUEUED:
        fail_task(connection, task, job.engine, str(error), now)


def _end_message(job: ClusterJobRow, reason: str | None) -> str:
    return f"Job {job.job_id or job.name} of {job.engine} has ended: {(reason or 'ended').rstrip('.')}."


def _nodes(job: ClusterJobRow) -> str:
    return "one node" if job.nodes == 1 else f"{job.nodes} nodes"


def _publish_message(connection: Connection, job: ClusterJobRow, message: str, now: float) -> None:
    task = tasks.by_ids(connection, [job.task_id]).get(job.task_id)
    if task is not None:
        events.append(connection, [events.of_task(task, "task.message", now, {"message": message})])
