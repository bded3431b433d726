"""Rows that repositories return, in the order of their table's columns.

Named tuples: a scheduling cycle creates and changes tens of thousands per second, and data classes of this width are
too slow for that.
"""

from __future__ import annotations

from typing import NamedTuple


class KeyRow(NamedTuple):
    """An API key."""

    seq: int
    id: str
    project: str
    name: str
    role: str
    owner: str
    secret_hash: str
    created_at: float
    last_used_at: float | None
    revoked_at: float | None
    endpoint: str | None = None


class WorkflowRow(NamedTuple):
    """A workflow."""

    seq: int
    id: str
    project: str
    name: str
    owner: str
    status: str
    open_tasks: int
    failed_tasks: int
    cancelled_tasks: int
    created_at: float
    finished_at: float | None
    idempotency_key: str | None
    request_hash: str | None
    retried_as: str | None


class TaskRow(NamedTuple):
    """A task, without its spec and its result."""

    seq: int
    id: str
    project: str
    workflow_id: str
    workflow_seq: int
    name: str
    kind: str
    slot_class: str
    owner: str
    parent_task_id: str | None
    priority: int
    rank: float
    requirement_key: str
    max_attempts: int
    backoff_s: float
    retry_on: str | None
    on_lost: str
    max_runtime_s: float | None
    queue_deadline: float | None
    created_at: float
    status: str
    reason: str | None
    error: str | None
    attempts: int
    failures: int
    losses: int
    attempt_id: str | None
    worker_id: str | None
    desired: str
    generation: int
    reached: int
    queued_at: float | None
    ready_at: float
    started_at: float | None
    finished_at: float | None
    version: int
    stalled_since: float | None = None
    merge_key: str | None = None
    title: str | None = None
    model: str | None = None
    dataset: str | None = None
    method: str | None = None


class DocumentRow(NamedTuple):
    """Large JSON texts of a task."""

    task_seq: int
    spec: str
    inputs: str
    result: str | None
    detail: str | None
    resolved: str | None = None
    notes: str | None = None

    @property
    def as_run(self) -> str:
        """The spec with resolved references, if there is one, else as written."""
        return self.resolved or self.spec


class AttemptRow(NamedTuple):
    """One try of a task."""

    id: str
    task_id: str
    task_seq: int
    number: int
    worker_id: str
    kind: str
    slot_class: str
    requirement_key: str
    state: str
    reason: str | None
    error: str | None
    offered_at: float
    accepted_at: float | None
    finished_at: float | None
    merged_into: str | None = None
    gpus: str | None = None
    gang_of: str | None = None
    node_rank: int | None = None
    gang_point: str | None = None
    gang_failed_at: float | None = None

    @property
    def member(self) -> bool:
        """Whether it is a gang node other than the first, which does not count as an attempt of the task."""
        return self.gang_of is not None and self.gang_of != self.id

    @property
    def open(self) -> bool:
        """Whether its token can still report a result."""
        return self.state in {"offered", "accepted"}


class CommandRow(NamedTuple):
    """A command to a running attempt or to a worker; `data` is JSON."""

    id: str
    task_id: str | None
    attempt_id: str | None
    worker_id: str
    command: str
    data: str
    state: str
    step: int | None
    checkpoint: str | None
    message: str | None
    owner: str
    created_at: float
    updated_at: float
    result: str | None = None

    @property
    def settled(self) -> bool:
        """Whether its outcome is final."""
        return self.state in {"durable", "failed"}


class ResumeRow(NamedTuple):
    """Where the next attempt of a task starts."""

    task_id: str
    step: int | None
    from_task_id: str | None
    worker_id: str | None
    bound: int


class WorkerRow(NamedTuple):
    """A worker."""

    id: str
    project: str
    owner: str
    key_id: str
    state_id: str
    session: str
    status: str
    capabilities: str
    registered_at: float
    last_seen_at: float | None


class EventRow(NamedTuple):
    """An event."""

    id: int
    project: str
    at: float
    kind: str
    task_id: str | None
    workflow_id: str | None
    workflow_seq: int | None
    worker_id: str | None
    data: str
    federation_seq: int | None = None
    campaign_seq: int | None = None


class LaunchRow(NamedTuple):
    """One process start of a task, and its journal cursor."""

    task_id: str
    launch: str
    number: int
    attempt_id: str
    from_step: int | None
    checkpoint: str | None
    hidden_after: int | None
    cursor: int
    progress: str | None
    started_at: float


class PointRow(NamedTuple):
    """A metric point; `values_json` is an object of numbers, possibly very many."""

    step: int
    epoch: float | None
    at: float
    window_from: int | None
    window_to: int | None
    values_json: str


class ArtifactRow(NamedTuple):
    """An artifact, without its files."""

    seq: int
    id: str
    project: str
    name: str
    kind: str
    digest: str
    size_bytes: int
    file_count: int
    task_id: str | None
    attempt_id: str | None
    owner: str
    created_at: float
    metadata: str
