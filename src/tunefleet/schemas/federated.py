"""Bodies of the federation routes: the upload protocol under `/api/training`, and `/api/v1/federations`.

The upload protocol uses camel case; its requests accept both spellings and unknown fields, for clients of several
generations. The spec of a federation is `spec.options.federation_options.FederationSpec`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, AliasGenerator, ConfigDict, Field, StrictInt
from pydantic.alias_generators import to_camel

from tunefleet.schemas.base import Body, Message, Name
from tunefleet.schemas.training_protocol.training import MAX_COUNT

UploadDtype = Literal["fp32", "fp16", "bf16", "int8"]
FederationState = Literal["queued", "running", "paused", "completed", "cancelled"]
RoundState = Literal["sampling", "collecting", "aggregating", "publishing", "published", "failed", "abandoned"]
UpdateState = Literal["waiting", "counted", "superseded", "aggregated", "rejected", "discarded"]
ADAPTER_FILE: Final = "adapter_model.safetensors"
CONFIG_FILE: Final = "adapter_config.json"

# Lowercase hex sha256.
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# Name of a worker; an integer is stored as its text.
WorkerName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]
Attempt = Annotated[int, Field(ge=1, lt=2**31)]
Loss = Annotated[float, Field(allow_inf_nan=False)]


class Camel(Message):
    """A message of the upload protocol: camel case on the wire."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=AliasGenerator(alias=to_camel),
        populate_by_name=True,
        serialize_by_alias=True,
    )


class Losses(Message):
    """A worker's loss on its own data, before and after training from its base version."""

    before: Loss | None = None
    after: Loss | None = None


# Routes of the upload protocol.


class AdapterTaken(Camel):
    """Response to an upload.

    Args:
        should_aggregate: Whether it was the last update that its round waited for.
        warning: Why it does not count (yet), and how to fix that.
        round: The round in which it counts or may count.
    """

    success: Literal[True] = True
    adapter_id: int
    message: str
    should_aggregate: bool
    round: int
    version: int
    warning: str | None = None


class Aggregated(Camel):
    """Response to a manual aggregation."""

    success: Literal[True] = True
    checkpoint_path: str
    message: str
    round: int
    version: int


class CheckpointMark(Camel):
    """The newest version; `step` is the highest among its contributors."""

    step: int
    timestamp: datetime
    round: int | None = None
    contributors: tuple[str, ...] = ()
    strategy: str


class CheckpointReply(Camel):
    """Response to a poll.

    Args:
        path: Path of the archive below the server's URL.
        download_url: Signed absolute URL of the archive, valid for a limited time.
        version: Version of the global adapter, from 1.
        round: The round that created it; null after a rollback.
    """

    checkpoint: CheckpointMark
    path: str
    download_url: str
    version: int
    sha256: str
    size_bytes: int
    round: int | None


class GuideRequest(Message):
    """A request of the upload protocol; unknown fields are kept."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)


def either(name: str, *more: str) -> AliasChoices:
    """Return the spellings of a field: snake case, camel case, and further aliases."""
    return AliasChoices(name, to_camel(name), *more)


class JobCreate(GuideRequest):
    """Body of `POST /api/training/jobs`.

    Args:
        config: LoRA options: `lora_rank`, `lora_alpha`, `target_modules`.
        fed_config: `aggregation_algorithm`, `sync_interval`, `min_workers`, `max_workers`, and keys of
            `FederationSpec`.
        dataset: Name or digest of a pushed dataset that is distributed in chunks.
    """

    name: Name
    model_type: str | None = Field(default=None, validation_alias=either("model_type", "model_name", "modelName"))
    dataset: str | None = Field(default=None, validation_alias=either("dataset", "dataset_path", "datasetPath"))
    chunk_size: int | None = Field(default=None, ge=1, lt=MAX_COUNT, validation_alias=either("chunk_size"))
    total_chunks: int | None = Field(default=None, ge=1, lt=MAX_COUNT, validation_alias=either("total_chunks"))
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    config: dict[str, Any] = Field(default_factory=dict)
    fed_config: dict[str, Any] = Field(default_factory=dict, validation_alias=either("fed_config"))


class JobState(Camel):
    """A federation, in the format of the upload protocol."""

    id: int
    job_id: str
    name: str
    model_type: str | None = None
    status: FederationState
    current_step: int = 0
    total_steps: int | None = None
    current_round: int = 0
    version: int = 0
    global_loss: float | None = None
    best_loss: float | None = None
    progress_percent: float = 0.0
    fed_config: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    error: str | None = None


class JobWorker(Camel):
    """A worker of a federation, in the format of the upload protocol."""

    id: str
    worker_id: str
    assigned_chunk: int | None = None
    status: Literal["assigned", "training", "syncing", "completed", "failed"]
    current_step: int = 0
    local_loss: float | None = None
    steps_per_second: float | None = None


class JobReply(Camel):
    """Response of `GET /api/training/jobs/{id}`."""

    job: JobState
    workers: tuple[JobWorker, ...] = ()


class JobCreated(Camel):
    """Response of `POST /api/training/jobs`; `token` is valid for this federation only.

    Args:
        callback_secret: Secret that signs callbacks to workers; shown only once.
    """

    job: JobState
    token: str
    callback_secret: str


class JobStats(Camel):
    """Statistics of a federation."""

    active_workers: int
    total_gradient_updates: int
    """Number of accepted updates, under its old name."""
    completed_chunks: int
    total_chunks: int = 0


class JobProgress(Camel):
    """Response of `GET /api/training/jobs/{id}/progress`."""

    job: JobState
    workers: tuple[JobWorker, ...]
    stats: JobStats


# Routes under `/api/v1/federations`.


class UpdateCreate(Body):
    """An update whose file is already uploaded.

    Args:
        worker: The worker that trained it.
        step: Optimizer step of the worker.
        num_examples: Rows trained on since the worker's last update. If that one is still waiting for aggregation, this
            update replaces it and has the weight of both.
        sha256: Digest of the file with the weights.
        config: The adapter's `adapter_config.json`.
        base_version: The version that it started from; 0 for none.
        upload_dtype: Data type of the weights in the file.
        tokenizer: Name → digest of the tokenizer's files, which are uploaded once.
        losses: Losses on the worker's own data.
        attempt: Number of starts of the worker, including this one. Once an attempt has taken part, updates of earlier
            attempts are rejected, and those for the open round are replaced.
        rows_before: Rows of its training that earlier updates have covered; identifies rows that are trained again.
    """

    worker: WorkerName
    step: Count
    num_examples: Annotated[int, Field(ge=1, lt=MAX_COUNT)]
    sha256: Digest
    config: dict[str, Any]
    base_version: Count | None = None
    upload_dtype: UploadDtype = "fp32"
    tokenizer: dict[str, Digest] = Field(default_factory=dict, max_length=64)
    losses: Losses = Losses()
    attempt: Attempt | None = None
    rows_before: Count | None = None


class UpdateTaken(Message):
    """Response to an update.

    Args:
        counted: Whether it counts in `round`; otherwise `warning` states why not.
        round: The round in which it counts or may count.
        state: Its current state; a waiting update counts in the next round.
        replaces: The earlier update of the same worker that it replaces.
    """

    id: int
    counted: bool
    should_aggregate: bool
    round: int
    version: int
    warning: str | None = None
    state: UpdateState | None = None
    replaces: int | None = None

    @property
    def will_count(self) -> bool:
        """Whether it counts, or will count in the next round."""
        return self.counted or self.state == "waiting"


class UpdateView(Message):
    """An update.

    Args:
        sha256: Digest of the uploaded weights; null if it was rejected before they were stored.
        norm: Frobenius norm of its change to the model.
        weight: Its weight in the aggregation.
        attempt: Attempt of its worker, if the worker counts them.
    """

    id: int
    worker: str
    round: int | None
    state: UpdateState
    reason: str | None = None
    step: int
    num_examples: int
    base_version: int | None
    sha256: str | None
    upload_dtype: UploadDtype
    size_bytes: int
    norm: float | None = None
    weight: float | None = None
    losses: Losses = Losses()
    attempt: int | None = None
    created_at: datetime


class RoundView(Message):
    """A round.

    Args:
        why: Pending reason, or why it failed.
        participants: The participating workers; null if any worker may participate.
        deadline_at: When it closes if it has enough updates; counted from the first update.
    """

    number: int
    status: RoundState
    why: str | None = None
    participants: tuple[str, ...] | None = None
    uploaded: tuple[str, ...] = ()
    version: int | None = None
    opened_at: datetime
    deadline_at: datetime | None = None
    closed_at: datetime | None = None
    finished_at: datetime | None = None


class MemberChange(Body):
    """Membership options of a worker; omitted fields do not change.

    Args:
        callback_url: URL for notifications about new versions; null disables them.
        attempt: Number of starts, including this one; uploads of earlier attempts are rejected from now on.
    """

    callback_url: str | None = Field(default=None, max_length=2000)
    attempt: Attempt | None = None


class MemberView(Message):
    """A worker of a federation.

    Args:
        callback_url: URL for notifications about new versions; only the host is shown.
        updates: Number of accepted updates.
        attempt: The newest attempt that has taken part, if the worker counts them.
        rows_taken: Number of rows of its training that its updates already cover, for a joining worker that counts its
            attempts; a worker that resumes from an older checkpoint does not upload them again.
        refused: Why its newest update does not count; null if it does or may count.
    """

    worker: str
    callback_url: str | None = None
    updates: int = 0
    num_examples: int = 0
    step: int | None = None
    round: int | None = None
    loss: float | None = None
    attempt: int | None = None
    rows_taken: int | None = None
    refused: str | None = None
    joined_at: datetime
    seen_at: datetime


class FederationView(Message):
    """A federation in a list.

    Args:
        number: Its numeric id for the upload protocol.
        task_id: The task whose parts take part; null if it does not belong to a task.
    """

    id: str
    number: int
    name: str
    owner: str
    status: FederationState
    why: str | None = None
    base_model: str | None = None
    strategy: str
    task_id: str | None = None
    version: int
    round: int | None = None
    members: int = 0
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


class FederationDetail(FederationView):
    """A federation with all details."""

    spec: dict[str, Any]
    contract: dict[str, Any] | None = None
    """Requirements on every update, derived from the first one."""
    member_list: tuple[MemberView, ...] = ()
    rounds: tuple[RoundView, ...] = ()
    """The newest rounds."""


class FederationCreated(FederationDetail):
    """A new federation, with its token and the secret that signs its callbacks."""

    token: str
    callback_secret: str


class Contribution(Message):
    """Contribution of a worker to a version."""

    worker: str
    update: int
    step: int
    num_examples: int
    base_version: int | None = None
    weight: float
    norm: float | None = None
    losses: Losses = Losses()


class Refusal(Message):
    """A rejected contribution, and the reason."""

    worker: str
    update: int | None = None
    reason: str


class VersionFile(Message):
    """A file of a version."""

    path: str
    sha256: str
    size_bytes: int


class VersionView(Message):
    """A version of the global adapter.

    Args:
        round: The round that created it; null for a rollback.
        equals: The version that a rollback has restored.
        sha256: Digest of `adapter_model.safetensors`.
        archive_sha256: Digest of the `.tar.gz`, which is created on first request; null until then.
        loss: Weighted loss of the contributors after training.
        truncation_error: Part of the exact average of the updates' products that the adapter does not cover, relative
            to its norm; null if the strategy does not compute such an average.
    """

    version: int
    round: int | None
    equals: int | None = None
    strategy: str
    contributors: tuple[str, ...]
    num_examples: int
    step: int
    loss: float | None = None
    truncation_error: float | None = None
    sha256: str
    size_bytes: int
    archive_sha256: str | None = None
    archive_size_bytes: int | None = None
    artifact_id: str
    created_at: datetime


class VersionDetail(VersionView):
    """A version with its provenance.

    Args:
        report: Report of the strategy: truncation error by layer, norms, clipping, rank, seconds.
    """

    contributions: tuple[Contribution, ...] = ()
    refused: tuple[Refusal, ...] = ()
    losses: Losses = Losses()
    files: tuple[VersionFile, ...] = ()
    report: dict[str, Any] = Field(default_factory=dict)


class RollbackRequest(Body):
    """Body of `POST /api/v1/federations/{id}/rollback`."""

    version: Annotated[int, Field(ge=1, lt=MAX_COUNT)]


class ClaimChunk(GuideRequest):
    """Body of `POST /api/training/jobs/{id}/claim-chunk`.

    Args:
        worker_id: The worker; if it already has a chunk, it gets the same one again.
        completed_chunk: Number of the chunk that it has completed.
    """

    worker_id: StrictInt | str = Field(validation_alias=either("worker_id"))
    completed_chunk: int | None = Field(default=None, ge=0, lt=MAX_COUNT, validation_alias=either("completed_chunk"))


class ChunkClaimed(Camel):
    """A chunk that is leased to a worker.

    Args:
        chunk_path: Path of the chunk below the server's URL.
        lease_until: End of the lease; a claim by the same worker renews it.
    """

    worker: JobWorker
    chunk_index: int
    chunk_path: str
    download_url: str | None = None
    sha256: str | None = None
    rows: int | None = None
    lease_until: datetime | None = None


class FederationToken(Message):
    """The token of a federation, valid for it only.

    Args:
        worker: The only worker name for which it is valid; null for the shared token.
        old_until: How long the replaced token remains valid; null if it does not.
    """

    id: str
    number: int
    token: str
    worker: str | None = None
    old_until: datetime | None = None


class TokenReplace(Body):
    """Body of `POST /api/v1/federations/{id}/token`.

    Args:
        old_for_s: Seconds for which the replaced token remains valid, at most one week.
    """

    old_for_s: Annotated[float, Field(ge=0, le=7 * 86_400.0)] = 0.0
