"""Messages between a worker and the server (one long-polled exchange).

An attempt is identified by its token: `{attempt_id}.{mac}`. The holder of the token owns the attempt; a token that is
no longer valid is answered with `drop`, and the holder ends the job and discards it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from tunefleet.schemas.base import Figure, Line, Message, Name, Whole
from tunefleet.validation_errors import summary

# Unix time of the last second that a `datetime` can represent.
MAX_TIME_S = 253_402_300_799.0
# About thirty years, an upper bound for the silence of a job.
MAX_SILENCE_S = 1e9

logger = logging.getLogger(__name__)
_MAX_SHOWN: Final = 3
# `job`: a separate process, such as training. `light`: runs inside the worker, several at a time.
SlotClass = Literal["job", "light"]

DesiredAction = Literal["run", "pause", "cancel"]
# `released`: no result for the task, because the run that it was coalesced into did not succeed.
FinishOutcome = Literal["completed", "failed", "cancelled", "paused", "released"]


class Gpu(Message):
    """One GPU as seen by the worker, with `CUDA_VISIBLE_DEVICES` applied.

    Args:
        in_use_by: Another process that uses it, so that the worker starts no job there; `None` if it is free.
    """

    index: Whole
    name: str
    uuid: str
    memory_total_bytes: Whole
    memory_free_bytes: Whole | None = None
    in_use_by: str | None = None


class ExecutorOffer(Message):
    """A task type that a worker can run, or why it cannot."""

    kind: str
    slot_class: SlotClass = "job"
    available: bool = True
    reason: str | None = None
    merges: bool = False
    """Whether it can coalesce equal tasks into one offer (`Offer.merged`)."""
    heeds: tuple[str, ...] | None = None
    """Commands (`schemas.control.ControlCommand`) that its jobs support; `None` if not reported: all commands may be
    sent."""
    features: dict[str, str | None] | None = None
    """Features that only some tasks need: name → why it is missing, or `None` if available. `None` if not reported: all
    features may be requested."""


class Capabilities(Message):
    """Capabilities of a worker."""

    version: str
    hostname: Line
    executors: tuple[ExecutorOffer, ...]
    slots: dict[SlotClass, Whole]
    cpu_count: Whole
    memory_total_bytes: Whole
    memory_free_bytes: Whole
    disk_free_bytes: Whole
    gpus: tuple[Gpu, ...] = ()
    tags: tuple[Line, ...] = Field(default=(), max_length=200)
    cached_models: tuple[str, ...] = ()
    cached_datasets: tuple[str, ...] = ()
    cache_read_at: float | None = Field(default=None, ge=0, le=MAX_TIME_S)
    """Unix time of the last cache scan."""
    allow_code: bool = False
    platform: str = ""
    secrets: tuple[str, ...] = ()
    """Names, never values, of its secrets; `NAME@PROJECT` for each project that a secret is limited to."""
    environments: tuple[str, ...] | None = None
    """Available environments of `tunefleet env`; `None` if not reported (older versions)."""
    bandwidth_bytes_per_s: Figure | None = None
    """Bandwidth limit of its transfers; `None` if unlimited."""
    cost_per_hour: Figure = 1.0
    link: Literal["http", "redis"] = "http"
    cpu_model: str = ""
    driver_version: str | None = None
    cuda_version: str | None = None
    address: str | None = None
    """Address for other machines of the fleet, as reported by the worker."""
    torch_version: str | None = None
    """`None` if torch is missing or not reported: then it cannot be a node of multi-node training."""
    started_at: float | None = Field(default=None, ge=0, le=MAX_TIME_S)
    """Unix time of the process start."""
    pid: Whole | None = None
    clock_ahead_s: Figure | None = None
    """How far its clock is ahead of the server's, as measured by the server; `None` if in sync or unknown."""


class RegisterRequest(Message):
    """A worker process has started, or the server requested a new registration.

    Args:
        worker_id: Stable across restarts of one state folder.
        session: New for each process start; fences off the previous process.
        state_id: Identity of the state folder (`TUNEFLEET_RESULTS_DIR`): two machines cannot share a worker id.
        holding: Tokens of accepted, unfinished attempts.
        sent_at: Unix time by the worker's clock; `None` from older versions.
    """

    worker_id: Name
    session: Name
    state_id: Name
    capabilities: Capabilities
    holding: tuple[str, ...] = ()
    sent_at: float | None = Field(default=None, ge=0, le=MAX_TIME_S)


class RegisterReply(Message):
    """Response to a registration.

    Args:
        keep: Held tokens that are still valid.
        drop: Held tokens that are revoked; end their jobs and deliver nothing.
        hold_s: How long an exchange may be held open, in seconds.
        lost_after_s: Seconds without contact after which the worker counts as lost.
        clock_ahead_s: How far the worker's clock is ahead of the server's; `None` if in sync or unknown.
    """

    keep: tuple[str, ...]
    drop: tuple[str, ...]
    hold_s: float
    lost_after_s: float
    clock_ahead_s: Figure | None = None


class Finish(Message):
    """How an attempt ended.

    Args:
        outcome: How it ended, as seen by the worker; the server decides about a retry.
        reason: A `lifecycle.task.TaskReason` value.
        error: One sentence for the user, if it failed.
        detail: The last traceback, if any.
        result: The executor's result (`responses.json`); empty unless completed, or computed but not delivered.
        cursors: For each launch, the journal sequence number after its last record. The server accepts the finish only
            when it has all records; otherwise it answers `behind`.
        lost_peer: For a failed node of a gang: it only reports that others are gone; their outcome decides.
    """

    token: str
    outcome: FinishOutcome
    reason: str
    error: str | None = None
    detail: str | None = None
    result: dict[str, Any] = Field(default_factory=dict)
    cursors: dict[str, Whole] = Field(default_factory=dict)
    lost_peer: bool = False


class CommandOutcome(Message):
    """Outcome of a command from the server."""

    command_id: str
    state: Literal["acknowledged", "applied", "durable", "failed"]
    step: Whole | None = None
    message: str | None = None
    checkpoint: str | None = None
    result: dict[str, Any] | None = None
    """Result of an admin command to the worker."""


class Reached(Message):
    """An attempt has reached the desired state of this generation."""

    token: str
    generation: Whole


class GpuLoad(Message):
    """Current load of one GPU."""

    uuid: str
    memory_free_bytes: Whole | None = None
    in_use_by: str | None = None
    utilisation_percent: Figure | None = None
    power_w: Figure | None = None
    temperature_c: Figure | None = None


class Load(Message):
    """Load of a worker; reported every `TUNEFLEET_HEARTBEAT_INTERVAL_S`, independent of the lease."""

    memory_free_bytes: Whole
    disk_free_bytes: Whole
    load_1m: Figure | None = None
    load_5m: Figure | None = None
    load_15m: Figure | None = None
    uptime_s: Figure | None = None
    gpus: tuple[GpuLoad, ...] = ()
    gpu_energy_j: Figure | None = None
    """Energy used by its GPUs since its start, as far as reported; `None` if no GPU reports its power."""


class ExchangeRequest(Message):
    """All reports of a worker, and how long it waits for a response.

    With a newer exchange of the same session, the server immediately answers the older one with an empty reply.

    `discarded`: removed tasks whose job folder the worker has deleted. `stalled`: by token, running jobs that write
    nothing, and for how many seconds; other jobs are not stalled. `delivering`: by token, attempts whose job has ended,
    so that they use no slot or device, with the reason of a delay (empty if there is none); other jobs may still need
    the machine. `points`: by token of an accepted first node of a gang, its rendezvous endpoint (host:port).
    `fetching`: by token, what an attempt downloads before its job starts, and the progress.
    """

    worker_id: Name
    session: Name
    wait_s: Figure = 0.0
    holding: tuple[str, ...] = ()
    accepts: tuple[str, ...] = ()
    points: dict[str, str] = Field(default_factory=dict)
    finishes: tuple[Finish, ...] = ()
    outcomes: tuple[CommandOutcome, ...] = ()
    reached: tuple[Reached, ...] = ()
    discarded: tuple[str, ...] = ()
    stalled: dict[str, Annotated[float, Field(ge=0, le=MAX_SILENCE_S)]] = Field(default_factory=dict)
    delivering: dict[str, str] = Field(default_factory=dict)
    fetching: dict[str, str] = Field(default_factory=dict)
    want: dict[SlotClass, Whole] = Field(default_factory=dict)
    draining: bool = False
    """Whether it is draining: it finishes its tasks, then exits, as requested by the server."""
    leaves: bool = False
    """It is drained and exits now; this is its last message."""
    load: Load | None = None
    """Reported periodically; `None` keeps the last values."""


class InputRef(Message):
    """An artifact that replaces a path in the workflow file.

    Args:
        digest: Digest of the artifact (of its manifest).
        name: Its name for the user, for messages.
    """

    digest: str
    name: str


class ResumeFrom(Message):
    """Where an attempt resumes.

    Args:
        step: Step of the checkpoint; `None` for the newest valid one that the worker has or can fetch.
        exact: Go back to `step` even if the worker has a newer one. Applies to the first launch only.
        checkpoint: The uploaded checkpoint, for a worker that does not have it; `None` if there is none.
        best: The uploaded checkpoint with the lowest eval loss, if it is a different one.
        from_task: The task whose job folder on this worker also contains the checkpoint.
    """

    step: Whole | None = None
    exact: bool = False
    checkpoint: InputRef | None = None
    best: InputRef | None = None
    from_task: str | None = None


class MergedTask(Message):
    """A task that is coalesced with the one of an offer; its result is delivered under its own token."""

    token: str
    task_id: str
    workflow_id: str
    attempt: Whole
    name: str
    spec: dict[str, Any]
    inputs: dict[str, InputRef] = Field(default_factory=dict)


class FederatedPart(Message):
    """Participation of a part of a federated task.

    Args:
        worker: Its name in the federation; the same for every attempt.
        token: Token of the federation, valid only for its uploads and versions.
        attempt: Number of the attempt; uploads of earlier attempts are rejected once this one takes part.
    """

    id: str
    worker: str
    token: str
    attempt: Whole | None = None


class GangNode(Message):
    """The node of a multi-node task that an attempt is; its job starts when all nodes have accepted.

    Args:
        id: Id of the gang; the same for all nodes, new for each attempt.
        rank: Number of the node, from 0. Only the first reports, receives commands and delivers.
        nodes: Number of nodes.
        release: Versions that all nodes must have, in the format of `release_of`.
    """

    id: str
    rank: Whole
    nodes: Whole
    release: str


def release_of(version: str, torch_version: str | None) -> str:
    """Return the versions that the nodes of a gang must have in common; empty without torch."""
    return "" if torch_version is None else f"Tunefleet {version}, torch {torch_version}"


class Offer(Message):
    """One attempt of a task, offered to one worker.

    Args:
        token: Identifies the attempt; also the bearer token for its results, files, journal and log.
        attempt: Number of the attempt, from 1.
        kind: The task type (`spec.taskType`).
        spec: The task's validated spec, JSON.
        inputs: Pointer into the spec (such as `data.path`) → artifact that replaces it.
        grace_s: Seconds for a cancelled job to end before SIGTERM.
        resume: Where it resumes, if the task has run before.
        gpus: UUIDs of the devices that the server has reserved for it; empty if unknown.
        merged: Equal tasks that the executor computes in the same run. Each has its own token, is accepted and
            finished by it, and uses no slot.
        federation: Participation in a federation, for a part of a federated task.
        traceparent: Span of the attempt in W3C format, if its task belongs to a trace.
        gang: The node, for a multi-node task.
        project: Project of the task; `None` from older servers.
        unreadable: Why the worker cannot parse the rest; then only `token` is valid. Set by `readable`, never sent.
    """

    token: str
    task_id: str
    workflow_id: str
    attempt: Whole
    kind: str
    name: str
    spec: dict[str, Any]
    inputs: dict[str, InputRef] = Field(default_factory=dict)
    slot_class: SlotClass = "job"
    grace_s: float = 30.0
    resume: ResumeFrom | None = None
    gpus: tuple[str, ...] = ()
    merged: tuple[MergedTask, ...] = ()
    federation: FederatedPart | None = None
    traceparent: str | None = None
    gang: GangNode | None = None
    project: str | None = None
    unreadable: str | None = Field(default=None, exclude=True)


def readable(data: Any) -> Offer:
    """Parse an offer of a server that may have another version.

    Returns:
        The offer; if only its tokens can be parsed, with `unreadable` set, so that the worker can report it.

    Raises:
        ValidationError: If not even its token can be parsed.
    """
    try:
        return Offer.model_validate(data)
    except ValidationError as error:
        token = data.get("token") if isinstance(data, Mapping) else None
        if not isinstance(token, str):
            raise
        why = summary(error, most=_MAX_SHOWN, quoted=False)
        merged = data.get("merged")
        parts = [part for part in merged if isinstance(part, Mapping)] if isinstance(merged, list) else []
        along = tuple(
            MergedTask.model_construct(**_named(part, "task_id", "workflow_id", "name"), token=part["token"])
            for part in parts
            if isinstance(part.get("token"), str)
        )
        names = _named(data, "task_id", "workflow_id", "kind", "name")
        return Offer.model_construct(**names, token=token, attempt=0, spec={}, merged=along, unreadable=why)


def _named(data: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value if isinstance(value := data.get(name), str) else "" for name in names}


def _one_by_one(read_one: Callable[[Any], Any]) -> WrapValidator:
    """Return a list validator that skips and logs invalid entries instead of rejecting the list."""

    def read(data: Any, all_of_them: ValidatorFunctionWrapHandler) -> Any:
        # Fast path: validate the whole list, since invalid entries are rare.
        try:
            return all_of_them(data)
        except ValidationError:
            if not isinstance(data, list | tuple):
                raise
        found = []
        for each in data:
            try:
                found.append(read_one(each))
            except ValidationError as error:
                logger.warning("Ignoring a message of the server that this version cannot parse: %s", summary(error))
        return tuple(found)

    return WrapValidator(read)


class Desired(Message):
    """Desired state of an attempt; repeated until the worker reports this generation."""

    token: str
    action: DesiredAction
    generation: Whole


class Command(Message):
    """A command for a running job, or with an empty token for the worker itself.

    Delivered at least once, deduplicated by its id.
    """

    token: str
    command_id: str
    command: str
    data: dict[str, Any] = Field(default_factory=dict)


def pause_id(task_id: str, attempt: int, generation: int) -> str:
    """Return the id of the control command for a desired pause; server and worker derive the same id."""
    return f"pause-{task_id}-{attempt}-{generation}"


class Behind(Message):
    """A finish that cannot be accepted yet, because the server lacks journal records."""

    token: str
    launch: str
    cursor: Whole


class ExchangeReply(Message):
    """The server's reply.

    Args:
        offers: Attempts to accept; repeated until they are accepted or revoked.
        accepted: Tokens whose accept is stored, so that the job may start; for a gang, when all nodes have accepted.
        points: Rendezvous endpoint of a gang (host:port), by the accepted token of a node.
        finished: Tokens whose finish is stored or obsolete; the worker may discard them.
        behind: Finishes to send again after the journal has been shipped from the cursor.
        drop: Revoked tokens: end the job, deliver nothing.
        discard: Removed tasks whose job folders must be deleted; repeated until the worker confirms.
        drain: Whether the worker should finish its tasks and exit; `None` if unchanged.
    """

    offers: Annotated[tuple[Offer, ...], _one_by_one(readable)] = ()
    accepted: tuple[str, ...] = ()
    points: dict[str, str] = Field(default_factory=dict)
    finished: tuple[str, ...] = ()
    behind: Annotated[tuple[Behind, ...], _one_by_one(Behind.model_validate)] = ()
    drop: tuple[str, ...] = ()
    desired: Annotated[tuple[Desired, ...], _one_by_one(Desired.model_validate)] = ()
    commands: Annotated[tuple[Command, ...], _one_by_one(Command.model_validate)] = ()
    discard: tuple[str, ...] = ()
    drain: bool | None = None


class JournalBatch(Message):
    """Records of one launch as written by the trainer, one JSON text per record.

    The sequence number of `lines[0]` is `from_seq`; it increases by one per line.
    """

    launch: str
    from_seq: Whole
    lines: tuple[str, ...]


class Cursor(Message):
    """Position in a stream: the next sequence number (journal) or byte (log) that the server expects."""

    cursor: Whole
