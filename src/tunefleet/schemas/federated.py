"""Bodies of the federation's routes: the upload guide's under `/api/training`, and ours under `/api/v1/federations`.

The guide's names are on the wire in camel case; its requests take both spellings and unknown fields, since clients of
several generations exist. What a user writes to make a federation is `spec.federating.FederationSpec`.
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
# What a worker calls itself; a whole number is kept as its text.
WorkerName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]
Attempt = Annotated[int, Field(ge=1, lt=2**31)]
Loss = Annotated[float, Field(allow_inf_nan=False)]


class Camel(Message):
    """A message of the guide: camel case on the wire."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=AliasGenerator(alias=to_camel),
        populate_by_name=True,
        serialize_by_alias=True,
    )


class Losses(Message):
    """A worker's loss on its own data, before and after it trained on the version that it started from."""

    before: Loss | None = None
    after: Loss | None = None


# The guide's routes.


class AdapterTaken(Camel):
    """The answer to an upload.

    Args:
        should_aggregate: Whether it was the last one that its round waited for.
        warning: Why it does not count, or not yet, and how to mend that.
        round: The round that it counts in, or may count in.
    """

    success: Literal[True] = True
    adapter_id: int
    message: str
    should_aggregate: bool
    round: int
    version: int
    warning: str | None = None


class Aggregated(Camel):
    """The answer to a manual aggregation."""

    success: Literal[True] = True
    checkpoint_path: str
    message: str
    round: int
    version: int


class CheckpointMark(Camel):
    """Where the newest version stands; `step` is the highest among its contributors."""

    step: int
    timestamp: datetime
    round: int | None = None
    contributors: tuple[str, ...] = ()
    strategy: str


class CheckpointReply(Camel):
    """The answer to a poll.

    Args:
        path: The archive's path below this server's address.
        download_url: The same, absolute, signed and good for a while.
        version: Of the global adapter, from 1.
        round: That made it; null after a rollback.
    """

    checkpoint: CheckpointMark
    path: str
    download_url: str
    version: int
    sha256: str
    size_bytes: int
    round: int | None


class GuideRequest(Message):
    """A body of the guide's: unknown fields are kept, so that nothing that was said is lost."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)


def either(name: str, *more: str) -> AliasChoices:
    """Return the spellings of a field of the guide's: ours, and in camel case."""
    return AliasChoices(name, to_camel(name), *more)


class JobCreate(GuideRequest):
    """Body of `POST /api/training/jobs`.

    Args:
        config: LoRA's: `lora_rank`, `lora_alpha`, `target_modules`.
        fed_config: `aggregation_algorithm`, `sync_interval`, `min_workers`, `max_workers`, and what our own spec has.
        dataset: Name or digest of pushed data that is dealt out in chunks.
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
    """A federation in the guide's words."""

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
    """A worker of a federation in the guide's words."""

    id: str
    worker_id: str
    assigned_chunk: int | None = None
    status: Literal["assigned", "training", "syncing", "completed", "failed"]
    current_step: int = 0
    local_loss: float | None = None
    steps_per_second: float | None = None


class JobReply(Camel):
    """The answer to `GET /api/training/jobs/{id}`."""

    job: JobState
    workers: tuple[JobWorker, ...] = ()


class JobCreated(Camel):
    """The answer to `POST /api/training/jobs`; `token` is good for this federation alone.

    Args:
        callback_secret: Signs what is posted to workers; shown this once.
    """

    job: JobState
    token: str
    callback_secret: str


class JobStats(Camel):
    """Figures of a federation."""

    active_workers: int
    total_gradient_updates: int
    """Updates that were taken; the guide's old name for them."""
    completed_chunks: int
    total_chunks: int = 0


class JobProgress(Camel):
    """The answer to `GET /api/training/jobs/{id}/progress`."""

    job: JobState
    workers: tuple[JobWorker, ...]
    stats: JobStats


# Ours.


class UpdateCreate(Body):
    """An update whose file was uploaded before.

    Args:
        worker: Who trained it.
        step: The worker's own optimizer step.
        num_examples: Rows that it has trained on since its last update. If that still waits to be aggregated, this one
            takes its place and weighs the rows of both.
        sha256: Of the file with the weights.
        config: The adapter's `adapter_config.json`.
        base_version: The version that it started from; 0 for none.
        upload_dtype: How the weights are written in the file.
        tokenizer: Name → digest of the tokenizer's files, which are sent once.
        losses: On its own data.
        attempt: How often its worker was begun, this time included. Once one has taken part, what an earlier one sends
            is refused, and what that has sent for the open round is replaced.
        rows_before: Rows of its training that updates before this one have weighed: which of them this one goes over
            again is known by it.
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
    """The answer to an update.

    Args:
        counted: Whether it counts in `round`; else `warning` says why not.
        round: The round that it counts in, or may count in.
        state: What became of it so far; one that waits counts in the next round.
        replaces: The update of the same worker whose place it has taken: that one counts no more.
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
        """Whether it counts, or is to as soon as a round takes it."""
        return self.counted or self.state == "waiting"


class UpdateView(Message):
    """An update.

    Args:
        sha256: Of its weights as they were uploaded; null if it was refused before they were stored.
        norm: Of its change to the model, Frobenius.
        weight: What it counted with, if it was aggregated.
        attempt: Of its worker, if that counts them.
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
        why: What it waits for, or why it failed.
        participants: Who takes part; null if whoever comes does.
        deadline_at: When it closes with those that are there, if they are enough; runs from the first update.
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
    """What a worker wants of a federation; what is left out stays.

    Args:
        callback_url: Where it is told of new versions; null ends it.
        attempt: How often it was begun, this time included; what an earlier attempt uploads is refused from now on.
    """

    callback_url: str | None = Field(default=None, max_length=2000)
    attempt: Attempt | None = None


class MemberView(Message):
    """A worker of a federation.

    Args:
        callback_url: Where it is told of new versions; only the host is shown.
        updates: How many of its updates were taken.
        attempt: The newest that has taken part, if it counts them.
        rows_taken: Up to which row of its training its updates count already; told to a worker that joins and counts
            its attempts. One that goes on from an older checkpoint sends those not again.
        refused: Why its newest update does not count; null if it does, or may yet.
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
        number: Its id where the guide wants a whole number.
        task_id: The training whose parts take part; null if it is none's.
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
    """A federation with all that is known of it."""

    spec: dict[str, Any]
    contract: dict[str, Any] | None = None
    """What every update must be; taken from the first one."""
    member_list: tuple[MemberView, ...] = ()
    rounds: tuple[RoundView, ...] = ()
    """The newest."""


class FederationCreated(FederationDetail):
    """A new federation; the token, good for it alone, and the secret that signs its callbacks."""

    token: str
    callback_secret: str


class Contribution(Message):
    """What a worker gave to a version."""

    worker: str
    update: int
    step: int
    num_examples: int
    base_version: int | None = None
    weight: float
    norm: float | None = None
    losses: Losses = Losses()


class Refusal(Message):
    """What a worker wanted to give to a version, and why it was not taken."""

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
        round: That made it; null for a rollback.
        equals: The version that a rollback has brought back.
        sha256: Of `adapter_model.safetensors`.
        archive_sha256: Of the `.tar.gz`; null until somebody has asked for it.
        loss: Of the contributors after they trained, weighted.
        truncation_error: What the adapter leaves out of the exact average of the updates' products, as a part of its
            norm; null where the strategy reckons no such average.
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
    """A version with how it came about.

    Args:
        report: What the strategy says: truncation error by layer, norms, what was clipped, rank, seconds.
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
        worker_id: Who wants one; who has one already gets the same again.
        completed_chunk: Number of the chunk that it has trained on to the end.
    """

    worker_id: StrictInt | str = Field(validation_alias=either("worker_id"))
    completed_chunk: int | None = Field(default=None, ge=0, lt=MAX_COUNT, validation_alias=either("completed_chunk"))


class ChunkClaimed(Camel):
    """A chunk that a worker has for a while.

    Args:
        chunk_path: Where it is fetched, below this server's address.
        lease_until: Until when; a claim by the same worker renews it.
    """

    worker: JobWorker
    chunk_index: int
    chunk_path: str
    download_url: str | None = None
    sha256: str | None = None
    rows: int | None = None
    lease_until: datetime | None = None


class FederationToken(Message):
    """The token of a federation, which is good for it alone.

    Args:
        worker: The only name that it is good for; null for the one that all workers may have.
        old_until: Until when the one that it has replaced is good as well; null if it is not.
    """

    id: str
    number: int
    token: str
    worker: str | None = None
    old_until: datetime | None = None


class TokenReplace(Body):
    """Body of `POST /api/v1/federations/{id}/token`.

    Args:
        old_for_s: How long the token that is replaced stays good, for workers that have it; at most a week.
    """

    old_for_s: Annotated[float, Field(ge=0, le=7 * 86_400.0)] = 0.0
