"""Tasks in the format of the first API version: responses of `/api/v1/tasks` for its clients."""

from __future__ import annotations

from typing import Any, Literal

from tunefleet.schemas.api import TaskDetail
from tunefleet.schemas.base import Message

# pending and queued; dispatched, running and paused; failed and cancelled; completed and skipped.
RecordStatus = Literal["PENDING", "DISPATCHED", "FAILED", "DONE"]
Category = Literal["inference", "training", "other"]


class SubmittedTask(Message):
    """A stored task; `waiting_on` lists those of `depends_on` that have not ended."""

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
    """The tasks of a workflow, in the order of the file."""

    ok: bool = True
    count: int
    tasks: tuple[SubmittedTask, ...]


class RecordFields(Message):
    """Additional fields of a v1 record; times are Unix times, except for `submitted_at`, which is a string."""

    task_id: str
    raw_yaml: str
    """The workflow file, with secrets masked."""
    parsed: dict[str, Any]
    """The task's own workflow: shared keys merged with those of its stage."""
    submission_id: str
    """Id of the workflow."""
    task_type: str
    category: Category
    assigned_worker: str | None = None
    """`MULTI` for a sharded task."""
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
    """Its name in a workflow with several tasks."""
    load: int
    merged_children: tuple[str, ...] = ()
    merged_parent_id: str | None = None
    merge_slice: tuple[int, int] | None = None
    merge_key: str | None = None


class TaskRecord(RecordFields):
    """A task in the format of v1."""

    status: RecordStatus
    error: str | None = None
    attempts: int
    parent_task_id: str | None = None
    """Parent task of a shard."""


class TaskAnswer(TaskDetail, RecordFields):
    """A task with all details, in the current format and that of v1.

    Fields with the same name have the current meaning: `status` is the current status, and `record_status` that of v1;
    with `?format=v1` they are swapped.
    """

    record_status: str
    pending_dependencies: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()
    completed: bool
    failed: bool
