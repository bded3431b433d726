"""Request bodies and views of the HTTP API under `/api/v1`, shared by server, client, CLI and web UI."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from tunefleet.schemas.base import Body, Message, Name, PathName, ProcessBody
from tunefleet.schemas.direct import DirectOffer
from tunefleet.schemas.fleet import ConcurrencyForecast, TaskForecast, TaskGlance

T = TypeVar("T")

Role = Literal["admin", "member", "viewer", "worker", "endpoint"]
# Prefix of the error code (`TunefleetError.code`) in a problem's `type`.
PROBLEM_PREFIX = "urn:tunefleet:error:"


def _without_comma(value: str) -> str:
    if "," in value:
        raise ValueError("must not contain a comma: filters separate tags with commas")
    return value


class Page(Message, Generic[T]):
    """One page of a list; `next_cursor` is null on the last page."""

    items: tuple[T, ...]
    next_cursor: str | None = None


class Problem(Message):
    """An error, as RFC 9457 `application/problem+json`.

    Args:
        type: `PROBLEM_PREFIX` and the error's code, such as `urn:tunefleet:error:not_found`.
        cursor: The position that the server expects, if a stream was continued at the wrong one.
    """

    type: str
    title: str
    status: int
    detail: str
    hint: str | None = None
    faults: tuple[dict[str, Any], ...] = ()
    cursor: int | None = None


class FaultView(Message):
    """One error in a workflow file."""

    path: str
    message: str
    line: int = 0
    column: int = 0
    hint: str | None = None


class SubmitRequest(Body):
    """A workflow file, and the artifacts for its local paths.

    Args:
        document: The YAML or JSON text, unchanged.
        inputs: Task name → pointer into the spec (such as `data.path`) → digest of an uploaded artifact.
        strict: Reject tasks that no registered worker can run.
    """

    document: str
    filename: str | None = None
    inputs: dict[str, dict[str, str]] = Field(default_factory=dict)
    strict: bool = False


class ValidateReply(Message):
    """Result of a validation; `faults` is empty if the workflow is valid.

    Args:
        ok: Whether the workflow is valid.
        faults: The errors.
        forecasts: For a dry run: where each task would be placed, and why.
        concurrency: For a dry run: what runs at the same time; null if there is never more than one task.
        warnings: Values that are valid but probably unintended, one sentence each.
    """

    ok: bool
    tasks: tuple[str, ...] = ()
    faults: tuple[FaultView, ...] = ()
    forecasts: tuple[TaskForecast, ...] = ()
    concurrency: ConcurrencyForecast | None = None
    warnings: tuple[str, ...] = ()


class ProgressView(Message):
    """Progress of a running task: the newest progress record of its journal."""

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
    """Its name in the workflow file, or the one that a user has given it since."""
    original_name: str | None = None
    """Its name in the workflow file, if it was renamed."""
    kind: str
    model: str | None = None
    """Base model, as in the spec."""
    dataset: str | None = None
    method: str | None = None
    """What a training task trains, and how: `full_sft`, `lora_dpo`, `qlora_sft` …"""
    tags: tuple[str, ...] = ()
    notes: str | None = None
    status: str
    reason: str | None = None
    error: str | None = None
    why: str | None = None
    """Pending reason, if the task is waiting."""
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
    """Run time of its ended attempts in seconds, from accept to end; the running one started at `started_at`."""
    desired: Literal["run", "pause", "cancel"] = "run"
    """Desired state; a running task that is to be paused completes its step and saves first."""
    stalled_since: datetime | None = None
    """Time of the last journal record of a running task, if older than `limits.stall_after_s`."""
    progress: ProgressView | None = None
    depends_on: tuple[str, ...] = ()
    """Ids of the upstream tasks."""
    shard_of: str | None = None
    """Parent task of a shard."""
    shard: tuple[int, int] | None = None
    """Index (from 0) and number of shards."""
    merged_into: str | None = None
    """The task whose run also computes this one (coalesced)."""
    workflow_name: str | None = None
    glance: TaskGlance | None = None
    """Summary of its metrics, if requested and there are any."""
    config: dict[str, Any] | None = None
    """Its spec as run, if requested."""


Tag = Annotated[Name, Field(max_length=40), AfterValidator(_without_comma)]


class TaskEdit(Body):
    """Change how a task is presented; fields that are left out stay.

    Args:
        name: New name; null restores the one in the workflow file.
        tags: The new tags.
        notes: New notes; null or an empty text removes them.
    """

    name: Name | None = None
    tags: Annotated[tuple[Tag, ...], Field(max_length=20)] = ()
    notes: Annotated[str, Field(max_length=10_000)] | None = None

    @model_serializer(mode="wrap")
    def _named(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Null restores the original, so unset fields must not be serialized as null.
        return {name: value for name, value in whole(self).items() if name in self.model_fields_set}


class NodeView(Message):
    """One worker of a multi-node attempt."""

    worker_id: str
    state: Literal["offered", "accepted", "finished", "void"]
    reason: str | None = None
    error: str | None = None


class AttemptView(Message):
    """One attempt of a task."""

    number: int
    worker_id: str
    state: Literal["offered", "accepted", "finished", "void"]
    reason: str | None = None
    error: str | None = None
    offered_at: datetime
    accepted_at: datetime | None = None
    finished_at: datetime | None = None
    nodes: tuple[NodeView, ...] = ()
    """All workers of a multi-node attempt, by rank; the first one reports."""


class TaskDetail(TaskView):
    """A task with all details."""

    spec: dict[str, Any]
    """The spec as written."""
    resolved: dict[str, Any] | None = None
    """The spec with references replaced, once the upstream tasks have ended."""
    inputs: dict[str, str] = Field(default_factory=dict)
    result: dict[str, Any] | None = None
    detail: str | None = None
    attempt_list: tuple[AttemptView, ...] = ()


class RetriedView(Message):
    """The newest retry of a workflow."""

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
    """A workflow with the file as submitted."""

    document: str


class EventView(Message):
    """An event; `id` increases and is the `Last-Event-ID` of the stream."""

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
    """Points of one series in step order, down-sampled on request."""

    task_id: str
    series: str
    names: tuple[str, ...]
    total: int
    """Points before down-sampling."""
    points: tuple[MetricPoint, ...]


class LogView(Message):
    """A section of a task's log.

    Args:
        task_id: The task.
        offset: Byte offset of the section.
        next_offset: Byte offset of the next section.
        size_bytes: Current size of the log.
        final: Whether the task is final and the section includes the end.
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
    """Publish an artifact whose files are already uploaded.

    `digest` must be the digest of the manifest (`tunefleet.artifacts.manifest_digest`) of `files`.
    """

    name: PathName
    kind: Name = "files"
    files: tuple[FileEntry, ...]
    digest: str
    metadata: dict[str, Any] = Field(default_factory=dict)


class ArtifactOrigin(Message):
    """The task that produced an artifact, and what it read.

    Args:
        status: Status of the task.
        model: `model.source` of its spec.
        data: Dataset that it read, as its spec names it.
        inputs: Pointer into its spec → digest of the artifact that it read.
        loads: Tasks whose model or adapter it started from or merged.
        eval_loss: Eval loss before and after training, in nats per token.
        exact_match: Share of correct answers before and after training.
        row_shape: How the rows were read; `pair` is trained as plain text.
        separator: Text between prompt and response of a `pair`.
        campaign: Whether a campaign submitted it.
    """

    task_name: str
    task_kind: str
    status: str
    model: dict[str, Any] = Field(default_factory=dict)
    data: str | None = None
    inputs: dict[str, str] = Field(default_factory=dict)
    loads: tuple[str, ...] = ()
    eval_loss: tuple[float, float] | None = None
    exact_match: tuple[float, float] | None = None
    row_shape: str | None = None
    separator: str | None = None
    campaign: bool = False


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
    origin: ArtifactOrigin | None = None
    """Its task, if requested; null if it was uploaded."""


class ArtifactDetail(ArtifactView):
    """An artifact with its files."""

    files: tuple[FileEntry, ...]


class BlobQuery(ProcessBody):
    """Query which of these files are missing on the server."""

    blobs: tuple[FileEntry, ...]


class BlobMissing(Message):
    """A missing file, and how many bytes of it an earlier upload has stored."""

    digest: str
    offset: int = 0


class BlobReply(Message):
    """The files that must be uploaded.

    Args:
        direct: Files that the client may upload directly to the object store; null if all go through the server.
    """

    missing: tuple[BlobMissing, ...]
    direct: DirectOffer | None = None


class KeyCreate(Body):
    """A new API key.

    Args:
        name: Display name.
        role: Permissions of the key.
        owner: Owner of resources that it creates; default: its name.
        project: Its project; default: the project of the key that creates it.
        endpoint: With the role `endpoint`: the only endpoint that it may call; default: all of its project.
    """

    name: Name
    role: Role = "member"
    owner: Name | None = None
    project: str | None = Field(default=None, min_length=1, max_length=63)
    endpoint: Name | None = None

    @model_validator(mode="after")
    def _endpoint_fits(self) -> Self:
        if self.endpoint is not None and self.role != "endpoint":
            raise ValueError(f"a key for the endpoint {self.endpoint} must have the role endpoint")
        return self


class KeyView(Message):
    """An API key, without its secret."""

    id: str
    name: str
    role: Role
    owner: str
    project: str = "default"
    endpoint: str | None = None
    created_at: datetime
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


class KeyCreated(KeyView):
    """A new API key; the secret is shown only once."""

    secret: str


class ServerInfo(Message):
    """Response of `GET /api/v1/info`, which needs no key."""

    version: str
    api: str = "v1"
    authenticated: bool
    role: Role | None = None
    owner: str | None = None
    project: str | None = None
    key_id: str | None = None


class CloneRequest(Body):
    """Clone a task with some fields changed.

    Args:
        overrides: Dotted path below `spec` (such as `training.learning_rate`) → value.
        inputs: Changed path of a local file (such as `data.path`) → digest of the uploaded artifact.
    """

    overrides: dict[str, Any] = Field(default_factory=dict)
    inputs: dict[str, str] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _without_empty_inputs(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A server of an earlier version rejects unknown fields.
        return {name: value for name, value in dump(self).items() if name != "inputs" or value}


class RetryRequest(Body):
    """Retry the unfinished tasks of a workflow, with some fields changed.

    Args:
        overrides: Dotted path below `spec` (such as `stages.train.spec.training.learning_rate`) → value.
        again: Retry even if an earlier retry is running or has completed.
    """

    overrides: dict[str, Any] = Field(default_factory=dict)
    again: bool = False


class LoginCode(Message):
    """A single-use code for one browser session, valid for ten minutes."""

    code: str
    url: str


class CommandRequest(Body):
    """Body of `POST /tasks/{id}/commands`: send a command to a running task.

    Args:
        command: A `schemas.control.ControlCommand` value.
        data: Parameters; only `set` has some (`schemas.control.SetData`).
        command_id: Idempotency key; default: a new one.
    """

    command: str
    data: dict[str, Any] = Field(default_factory=dict)
    command_id: str | None = Field(default=None, min_length=1, max_length=100)


class CommandView(Message):
    """A command and its outcome.

    Args:
        state: `pending` (not delivered), `acknowledged` (received by the job), `applied` at `step`, `durable` (its
            checkpoint is complete), `failed`.
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
    """Result of an admin command to a worker."""
    owner: str
    created_at: datetime
    updated_at: datetime

    @property
    def settled(self) -> bool:
        """Whether the state is final."""
        saving = self.command in {"save_checkpoint", "save_and_stop", "pause"}
        return self.state in {"durable", "failed"} or (self.state == "applied" and not saving)


class ResumeRequest(Body):
    """Body of `POST /tasks/{id}/resume`; for a final task, a new linked task is created.

    Args:
        from_step: The step of a checkpoint, `best`, or null for the newest.
    """

    from_step: int | Literal["best"] | None = None


class StopRequest(Body):
    """Body of `POST /tasks/{id}/stop`.

    Args:
        save: Save a checkpoint first.
    """

    save: bool = True


class CheckpointView(Message):
    """A complete checkpoint of a task.

    Args:
        name: `checkpoint-<step>`.
        size_bytes: Total size of its files.
        stall_s: Save time: how long training was paused for it, in seconds.
        best: Whether it had the lowest eval loss when it was saved.
        eval_loss: Eval loss at its step, if measured.
        artifact: Name of its artifact; null while it is only on its worker.
        resumable: Whether a task can currently resume from it.
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
    """Remove old final workflows and unreferenced files.

    Args:
        older_than_s: Minimum time since their end, in seconds.
        dry_run: Only report what would be removed.
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
