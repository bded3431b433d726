"""Bodies and views of the HTTP API under `/api/v1`; server, client, CLI and page share them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from tunefleet.schemas.base import Body, Message, Name, PathName, ProcessBody
from tunefleet.schemas.direct import DirectOffer
from tunefleet.schemas.fleet import TaskForecast, TaskGlance

T = TypeVar("T")

Role = Literal["admin", "member", "viewer", "worker"]


class Page(Message, Generic[T]):
    """One page of a list; `next_cursor` is null on the last."""

    items: tuple[T, ...]
    next_cursor: str | None = None


# What stands before the code of an error (`TunefleetError.code`) in a problem's `type`.
PROBLEM_PREFIX = "urn:tunefleet:error:"


class Problem(Message):
    """An error, as RFC 9457 `application/problem+json`.

    Args:
        type: `PROBLEM_PREFIX` and the error's code, such as `urn:tunefleet:error:not_found`.
        cursor: Where the server stands, when a stream was continued at the wrong place.
    """

    type: str
    title: str
    status: int
    detail: str
    hint: str | None = None
    faults: tuple[dict[str, Any], ...] = ()
    cursor: int | None = None


class FaultView(Message):
    """One fault of a document."""

    path: str
    message: str
    line: int = 0
    column: int = 0
    hint: str | None = None


class SubmitRequest(Body):
    """A workflow document, and which artifacts stand for the local paths in it.

    Args:
        document: The YAML or JSON text, as the user wrote it.
        inputs: Task name → pointer into the spec (such as `data.path`) → digest of an artifact known to the server.
        strict: Refuse a task that no present worker could ever run.
    """

    document: str
    filename: str | None = None
    inputs: dict[str, dict[str, str]] = Field(default_factory=dict)
    strict: bool = False


class ValidateReply(Message):
    """The outcome of a validation; faults are empty if the document is good.

    Args:
        ok: Whether it is good.
        faults: What is wrong with it.
        forecasts: Of a dry run: where each task would go, and why.
        warnings: What may not be meant as it is written, a sentence each.
    """

    ok: bool
    tasks: tuple[str, ...] = ()
    faults: tuple[FaultView, ...] = ()
    forecasts: tuple[TaskForecast, ...] = ()
    warnings: tuple[str, ...] = ()


class ProgressView(Message):
    """Where a running task stands; the newest progress record of its journal."""

    phase: str
    step: int = 0
    max_steps: int = 0
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    eta_s: float | None = None
    rss_bytes: int | None = None
    gpu_bytes: int | None = None
    at: datetime | None = None


class TaskView(Message):
    """A task in lists."""

    id: str
    workflow_id: str
    name: str
    kind: str
    status: str
    reason: str | None = None
    error: str | None = None
    why: str | None = None
    """Why it waits, if it waits."""
    owner: str
    priority: int = 0
    attempts: int = 0
    worker_id: str | None = None
    parent_task_id: str | None = None
    created_at: datetime
    queued_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    ran_s: float = 0.0
    """Seconds that its ended attempts have run, from accept to end; the one that runs began at `started_at`."""
    desired: Literal["run", "pause", "cancel"] = "run"
    """What was asked of it; a running task that is wanted paused ends its step and saves first."""
    stalled_since: datetime | None = None
    """Since when a running task has written no journal record, if that is longer than `limits.stall_after_s`."""
    progress: ProgressView | None = None
    depends_on: tuple[str, ...] = ()
    """Ids of the tasks that must be completed before."""
    shard_of: str | None = None
    """The task that this one is a part of."""
    shard: tuple[int, int] | None = None
    """Which part of how many, counted from 0."""
    merged_into: str | None = None
    """The task whose run computes this one too."""
    workflow_name: str | None = None
    glance: TaskGlance | None = None
    """Of a running task, where that was asked for."""


class NodeView(Message):
    """One worker of a try that ran on several."""

    worker_id: str
    state: Literal["offered", "accepted", "finished", "void"]
    reason: str | None = None
    error: str | None = None


class AttemptView(Message):
    """One try of a task."""

    number: int
    worker_id: str
    state: Literal["offered", "accepted", "finished", "void"]
    reason: str | None = None
    error: str | None = None
    offered_at: datetime
    accepted_at: datetime | None = None
    finished_at: datetime | None = None
    nodes: tuple[NodeView, ...] = ()
    """All of its workers, in the order of their rank, if it runs on several; the first reports."""


class TaskDetail(TaskView):
    """A task with all that is known of it."""

    spec: dict[str, Any]
    """As it was written."""
    resolved: dict[str, Any] | None = None
    """As it is run: its references replaced by what they name, once the tasks before it have ended."""
    inputs: dict[str, str] = Field(default_factory=dict)
    result: dict[str, Any] | None = None
    detail: str | None = None
    attempt_list: tuple[AttemptView, ...] = ()


class RetriedView(Message):
    """The newest workflow that runs again what an earlier one has left."""

    id: str
    status: str


class WorkflowView(Message):
    """A submitted workflow with its tasks."""

    id: str
    name: str
    owner: str
    status: str
    """`running` until all tasks are final; then `failed`, `cancelled` or `completed`."""
    created_at: datetime
    tasks: tuple[TaskView, ...]
    warnings: tuple[str, ...] = ()
    retried_as: RetriedView | None = None


class WorkflowDetail(WorkflowView):
    """A workflow with the document as it was submitted."""

    document: str


class EventView(Message):
    """Something that happened; `id` grows, and is the `Last-Event-ID` of the stream."""

    id: int
    at: datetime
    kind: str
    task_id: str | None = None
    workflow_id: str | None = None
    worker_id: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class MetricPoint(Message):
    """Values logged at one step."""

    step: int
    epoch: float | None = None
    at: datetime
    window: tuple[int, int] | None = None
    values: dict[str, float | str]


class MetricsView(Message):
    """Points of one series in step order, down-sampled if that was asked for."""

    task_id: str
    series: str
    names: tuple[str, ...]
    total: int
    """Points before down-sampling."""
    points: tuple[MetricPoint, ...]


class LogView(Message):
    """A piece of a task's log.

    Args:
        task_id: Whose log it is.
        offset: Byte offset of the piece.
        next_offset: Where the next piece starts.
        size_bytes: Length of the whole log so far.
        final: Whether the task is final and the piece reaches the end.
    """

    task_id: str = ""
    text: str
    offset: int
    next_offset: int
    size_bytes: int
    final: bool


class FileEntry(Message):
    """One file of an artifact."""

    path: str
    digest: str
    size_bytes: int


class ArtifactCreate(ProcessBody):
    """Publish an artifact whose files are already stored.

    `digest` must be the digest of the manifest (`tunefleet.artifacts.manifest_digest`) of `files`.
    """

    name: PathName
    kind: Name = "files"
    files: tuple[FileEntry, ...]
    digest: str
    metadata: dict[str, Any] = Field(default_factory=dict)


class ArtifactView(Message):
    """An artifact: files, manifest and digest."""

    id: str
    name: str
    kind: str
    digest: str
    size_bytes: int
    file_count: int
    task_id: str | None = None
    owner: str
    created_at: datetime
    metadata: dict[str, Any] = Field(default_factory=dict)


class ArtifactDetail(ArtifactView):
    """An artifact with its files."""

    files: tuple[FileEntry, ...]


class BlobQuery(ProcessBody):
    """Which of these files does the server lack?"""

    blobs: tuple[FileEntry, ...]


class BlobMissing(Message):
    """A file that the server lacks, and how much of it an earlier upload left."""

    digest: str
    offset: int = 0


class BlobReply(Message):
    """The files that have to be uploaded.

    Args:
        direct: Which of them the asker may send to the object store; null if all pass through the server.
    """

    missing: tuple[BlobMissing, ...]
    direct: DirectOffer | None = None


class KeyCreate(Body):
    """A new API key.

    Args:
        name: What to call it.
        role: What it may do.
        owner: Whom the rows that it makes belong to; default: its name.
        project: Where it works; default: where the one works that makes it.
    """

    name: Name
    role: Role = "member"
    owner: Name | None = None
    project: str | None = Field(default=None, min_length=1, max_length=63)


class KeyView(Message):
    """An API key, without its secret."""

    id: str
    name: str
    role: Role
    owner: str
    project: str = "default"
    created_at: datetime
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


class KeyCreated(KeyView):
    """A new API key; the secret is shown this once."""

    secret: str


class ServerInfo(Message):
    """What `GET /api/v1/info` tells anybody who asks."""

    version: str
    api: str = "v1"
    authenticated: bool
    role: Role | None = None
    owner: str | None = None
    project: str | None = None
    key_id: str | None = None


class CloneRequest(Body):
    """Submit a task again with some fields changed.

    Args:
        overrides: Dotted path below `spec` (such as `training.learning_rate`) → value.
    """

    overrides: dict[str, Any] = Field(default_factory=dict)


class RetryRequest(Body):
    """Run again what a workflow has left, with some fields changed.

    Args:
        overrides: Dotted path below `spec` (such as `stages.train.spec.training.learning_rate`) → value.
        again: Also if an earlier retry runs or has completed.
    """

    overrides: dict[str, Any] = Field(default_factory=dict)
    again: bool = False


class LoginCode(Message):
    """A code that opens one browser session; usable once, for ten minutes."""

    code: str
    url: str


class CommandRequest(Body):
    """Body of `POST /tasks/{id}/commands`: ask a running task for something.

    Args:
        command: A `schemas.control.ControlCommand` value.
        data: What it needs; only `set` needs something (`schemas.control.SetData`).
        command_id: Makes a repetition harmless; by default a new one.
    """

    command: str
    data: dict[str, Any] = Field(default_factory=dict)
    command_id: str | None = Field(default=None, min_length=1, max_length=100)


class CommandView(Message):
    """A command and what became of it.

    Args:
        state: `pending` (on its way), `acknowledged` (the job has it), `applied` at `step`, `durable` (its checkpoint
            is whole), `failed`.
    """

    id: str
    task_id: str = ""
    worker_id: str = ""
    command: str
    data: dict[str, Any] = Field(default_factory=dict)
    state: Literal["pending", "acknowledged", "applied", "durable", "failed"]
    step: int | None = None
    checkpoint: str | None = None
    message: str | None = None
    result: dict[str, Any] | None = None
    """What a worker's verb has found."""
    owner: str
    created_at: datetime
    updated_at: datetime

    @property
    def settled(self) -> bool:
        """Whether nothing more will become of it."""
        saving = self.command in {"save_checkpoint", "save_and_stop", "pause"}
        return self.state in {"durable", "failed"} or (self.state == "applied" and not saving)


class ResumeRequest(Body):
    """Body of `POST /tasks/{id}/resume`; a final task gets a new one linked to it.

    Args:
        from_step: The step of a checkpoint, `best`, or None for the newest.
    """

    from_step: int | Literal["best"] | None = None


class StopRequest(Body):
    """Body of `POST /tasks/{id}/stop`.

    Args:
        save: Save a checkpoint first.
    """

    save: bool = True


class CheckpointView(Message):
    """A whole checkpoint of a task.

    Args:
        name: `checkpoint-<step>`.
        size_bytes: Of its files together.
        stall_s: How long the training stood still for it.
        best: Whether it had the lowest held-out loss when it was saved.
        eval_loss: The held-out loss at its step, if one was measured.
        artifact: Name of the artifact that holds it; null while only its worker has it.
        resumable: Whether a resume from it can work now.
    """

    step: int
    name: str
    digest: str
    size_bytes: int
    stall_s: float = 0.0
    best: bool = False
    eval_loss: float | None = None
    artifact: str | None = None
    resumable: bool = True
    at: datetime


class PruneRequest(Body):
    """Remove final workflows that ended long ago, and files that nothing refers to.

    Args:
        older_than_s: Age since their end, in seconds.
        dry_run: Only say what would be removed.
    """

    older_than_s: float = Field(ge=0)
    dry_run: bool = False


class PruneReply(Message):
    """What was removed, or would be."""

    workflows: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    blobs: int = 0
    freed_bytes: int = 0
    dry_run: bool = False
