"""Tasks as the first version of the API showed them: answers of `/api/v1/tasks` that its clients expect."""

from __future__ import annotations

from typing import Any, Literal

from tunefleet.schemas.api import TaskDetail
from tunefleet.schemas.base import Message

# pending and queued; dispatched, running and paused; failed and cancelled; completed and skipped.
RecordStatus = Literal["PENDING", "DISPATCHED", "FAILED", "DONE"]
Category = Literal["inference", "training", "other"]


class SubmittedTask(Message):
    """A task that was just stored; `waiting_on` are those of `depends_on` that have not ended."""

    task_id: str
    status: RecordStatus
    assigned_worker: str | None = None
    topic: str
    waiting_on: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    attempts: int
    max_attempts: int
    load: int


class Submitted(Message):
    """The tasks of a document, in its order."""

    ok: bool = True
    count: int
    tasks: tuple[SubmittedTask, ...]


class RecordFields(Message):
    """What a v1 record has beside what a task of ours has; times are Unix times, `submitted_at` is one in words."""

    task_id: str
    raw_yaml: str
    """The document; what looks like a secret in it is hidden."""
    parsed: dict[str, Any]
    """The task's own document: what its stage adds is merged in."""
    submission_id: str
    """The workflow."""
    task_type: str
    category: Category
    assigned_worker: str | None = None
    """`MULTI` for a task that is spread over workers."""
    topic: str
    submitted_at: str
    submitted_ts: float
    last_queue_ts: float | None = None
    dispatched_ts: float | None = None
    started_ts: float | None = None
    finished_ts: float | None = None
    max_attempts: int
    shard_index: int | None = None
    shard_total: int | None = None
    next_retry_at: float | None = None
    last_failed_worker: str | None = None
    graph_node_name: str | None = None
    """Its name in a document of several tasks."""
    load: int
    merged_children: tuple[str, ...] = ()
    merged_parent_id: str | None = None
    merge_slice: tuple[int, int] | None = None
    merge_key: str | None = None


class TaskRecord(RecordFields):
    """A task as v1 lists it."""

    status: RecordStatus
    error: str | None = None
    attempts: int
    parent_task_id: str | None = None
    """The task that this one is a part of."""


class TaskAnswer(TaskDetail, RecordFields):
    """A task with all that is known of it, under our names and under v1's.

    Where a name is used by both, ours holds: `status` is our word, and `record_status` v1's; with `?format=v1` it is
    the other way round.
    """

    record_status: str
    pending_dependencies: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()
    completed: bool
    failed: bool
