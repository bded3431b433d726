"""Messages of the link between a worker and the server (one long-polled exchange).

An attempt is named by its token everywhere: `{attempt_id}.{mac}`. Whoever holds the token owns the attempt; a token
that the server no longer honours is answered with `drop`, and the holder ends the job and forgets it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from tunefleet.schemas.base import Figure, Line, Message, Name, Whole

# Unix time of the last second that a date can say.
MAX_TIME_S = 253_402_300_799.0
# Thirty years: what has begun before there were such jobs is no date of one.
MAX_SILENCE_S = 1e9

logger = logging.getLogger(__name__)
_TOLD_FAULTS: Final = 3
SlotClass = Literal["job", "light"]
"""`job`: one process of its own, a training. `light`: runs inside the worker, several at once."""

DesiredAction = Literal["run", "pause", "cancel"]
FinishOutcome = Literal["completed", "failed", "cancelled", "paused", "released"]
"""`released`: nothing was learned about the task; the run that it was merged into ended otherwise than well."""


class Gpu(Message):
    """One GPU as the worker sees it, `CUDA_VISIBLE_DEVICES` applied.

    Args:
        in_use_by: Who else uses it now, so that the worker begins no job there; None if nobody does.
    """

    index: Whole
    name: str
    uuid: str
    memory_total_bytes: Whole
    memory_free_bytes: Whole | None = None
    in_use_by: str | None = None


class ExecutorOffer(Message):
    """A task kind that a worker can run, or why it cannot."""

    kind: str
    slot_class: SlotClass = "job"
    available: bool = True
    reason: str | None = None
    merges: bool = False
    """Whether it takes several equal tasks as one offer (`Offer.merged`)."""
    heeds: tuple[str, ...] | None = None
    """Commands (`schemas.control.ControlCommand`) that its jobs take; None if the worker does not say, so that any may
    be asked for."""
    features: dict[str, str | None] | None = None
    """What only some of its tasks ask for: name → why it is not there, or None if it is. None if the worker does not
    say, so that any may be asked for."""


class Capabilities(Message):
    """What a worker is and has."""

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
    """Unix time at which it has looked what is cached."""
    allow_code: bool = False
    platform: str = ""
    secrets: tuple[str, ...] = ()
    """Names, never values, of the secrets that it has; `NAME@PROJECT` for each project that one is kept for."""
    environments: tuple[str, ...] | None = None
    """Those of `tunefleet env` that are ready there; None if the worker does not say, as older ones."""
    bandwidth_bytes_per_s: Figure | None = None
    """What its traffic of results is held to; None if it is not."""
    cost_per_hour: Figure = 1.0
    link: Literal["http", "redis"] = "http"
    cpu_model: str = ""
    driver_version: str | None = None
    cuda_version: str | None = None
    address: str | None = None
    """Where other machines of the fleet reach it, by its own account."""
    torch_version: str | None = None
    """None if there is none, or the worker does not say: then it cannot be a node of a training on several."""
    started_at: float | None = Field(default=None, ge=0, le=MAX_TIME_S)
    """Unix time of the process's start."""
    pid: Whole | None = None
    clock_ahead_s: Figure | None = None
    """How far its clock is ahead of the server's, by the server's account; None if they agree, or it is not known."""


class RegisterRequest(Message):
    """A worker's process has started, or the server asked it to say again who it is.

    Args:
        worker_id: Stable across restarts of one state folder.
        session: New for each process start; fences the process before it.
        state_id: Identity of the state folder (`RESULTS_DIR`), so that two machines cannot share a worker id.
        holding: Tokens of the attempts that the worker has accepted and not finished.
        sent_at: Unix time by the worker's clock; None of older ones.
    """

    worker_id: Name
    session: Name
    state_id: Name
    capabilities: Capabilities
    holding: tuple[str, ...] = ()
    sent_at: float | None = Field(default=None, ge=0, le=MAX_TIME_S)


class RegisterReply(Message):
    """What a registered worker may rely on.

    Args:
        keep: Held tokens that are still good.
        drop: Held tokens that are void; their jobs are to be ended, nothing is to be delivered.
        hold_s: How long an exchange may be held open.
        lost_after_s: Silence after which the server gives the worker up.
        clock_ahead_s: How far the worker's clock is ahead of the server's; None if they agree, or it is not known.
    """

    keep: tuple[str, ...]
    drop: tuple[str, ...]
    hold_s: float
    lost_after_s: float
    clock_ahead_s: Figure | None = None


class Finish(Message):
    """How an attempt ended.

    Args:
        outcome: How it ended, in the worker's eyes; the server decides about a retry.
        reason: A `lifecycle.task.TaskReason` value.
        error: One sentence for the user, if it failed.
        detail: The last traceback, if there is one.
        result: The executor's result (`responses.json`); empty unless completed, or computed and not delivered.
        cursors: For each launch, the journal sequence number after its last record. The server takes the finish only
            when it has all of them, else answers `behind`.
        lost_peer: Of a node of a gang that has failed: it only says that others are gone. What became of those decides.
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
    """What became of a command that the server sent."""

    command_id: str
    state: Literal["acknowledged", "applied", "durable", "failed"]
    step: Whole | None = None
    message: str | None = None
    checkpoint: str | None = None
    result: dict[str, Any] | None = None
    """What a verb of the worker itself has found."""


class Reached(Message):
    """The worker has brought an attempt to the desired state of this generation."""

    token: str
    generation: Whole


class GpuLoad(Message):
    """How one GPU of a worker stands now."""

    uuid: str
    memory_free_bytes: Whole | None = None
    in_use_by: str | None = None
    utilisation_percent: Figure | None = None
    power_w: Figure | None = None
    temperature_c: Figure | None = None


class Load(Message):
    """How busy a worker is; told every `HEARTBEAT_INTERVAL_SEC`, apart from the lease."""

    memory_free_bytes: Whole
    disk_free_bytes: Whole
    load_1m: Figure | None = None
    load_5m: Figure | None = None
    load_15m: Figure | None = None
    uptime_s: Figure | None = None
    gpus: tuple[GpuLoad, ...] = ()
    gpu_energy_j: Figure | None = None
    """What its GPUs have used since its process began, as far as they tell; None if none tells its power."""


class ExchangeRequest(Message):
    """Everything that a worker has to say, and how long it will wait for an answer.

    A newer exchange of the same session makes the server answer the older one at once, empty.

    `discarded` names removed tasks whose job folder the worker has deleted. `stalled` names, by token, the jobs that
    live and write nothing, and for how many seconds; a job that is not named there is not stalled. `delivering` names
    those whose job is over, so that they take no slot and no device: why they are held up, a sentence; empty if they
    are not. A job that is not named there may still need the machine. `points` says, by the token of an accepted first
    node of a gang, where it waits for the others (host:port). `fetching` says, by token, what an attempt fetches before
    its job begins, and how far it is.
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
    """Whether it finishes what it has and then leaves, because the server said so."""
    leaves: bool = False
    """It is drained, and ends now: this is its last word."""
    load: Load | None = None
    """Told now and then; None leaves the last figures standing."""


class InputRef(Message):
    """An artifact that stands for a path of the document.

    Args:
        digest: Digest of the artifact (of its manifest).
        name: What the user called it, for messages.
    """

    digest: str
    name: str


class ResumeFrom(Message):
    """Where an attempt is to go on.

    Args:
        step: The checkpoint's step; None means the newest valid one that the worker has or can fetch.
        exact: Go back to `step` even where the worker has a newer one. Of the first launch only: later ones go on.
        checkpoint: The uploaded checkpoint, for a worker that does not have it; None if there is none.
        best: The uploaded checkpoint with the lowest held-out loss, if it is another one.
        from_task: The task whose job folder on this worker holds the checkpoint too.
    """

    step: Whole | None = None
    exact: bool = False
    checkpoint: InputRef | None = None
    best: InputRef | None = None
    from_task: str | None = None


class MergedTask(Message):
    """A task that is computed together with the one of an offer; its result is delivered under its own token."""

    token: str
    task_id: str
    workflow_id: str
    attempt: Whole
    name: str
    spec: dict[str, Any]
    inputs: dict[str, InputRef] = Field(default_factory=dict)


class FederatedPart(Message):
    """How a part of a federated training takes part.

    Args:
        worker: Its name there; the same for every attempt.
        token: Of the federation: good for its uploads and versions, and for nothing else.
        attempt: Number of the attempt: what an earlier one of the part uploads is refused once this one takes part.
    """

    id: str
    worker: str
    token: str
    attempt: Whole | None = None


class GangNode(Message):
    """Which node of a training on several workers an attempt is; its job starts when all have accepted.

    Args:
        id: Of the gang; the same for all of its nodes, and new for each try.
        rank: Number of the node, from 0. The first alone reports, is steered and delivers.
        nodes: How many there are.
        release: Releases that all nodes must have, as `release_of` writes them.
    """

    id: str
    rank: Whole
    nodes: Whole
    release: str


def release_of(version: str, torch_version: str | None) -> str:
    """Return what the nodes of a gang must have in common; empty where there is no torch."""
    return "" if torch_version is None else f"Tunefleet {version}, torch {torch_version}"


class Offer(Message):
    """One attempt of a task, offered to one worker.

    Args:
        token: Names the attempt, and is the bearer key for its results, files, journal and log.
        attempt: Number of the attempt, from 1.
        kind: The task kind (`spec.taskType`).
        spec: The task's validated spec, JSON.
        inputs: For each pointer into the spec (such as `data.path`) the artifact to put in its place.
        grace_s: How long a cancelled job has to end before SIGTERM.
        resume: Where it goes on, if the task has run before.
        gpus: UUIDs of the devices that the server has counted as taken by it; empty where it knows of none.
        merged: Equal tasks that the executor computes in the same run. Each has its own token, is accepted and
            finished by it, and takes no slot.
        federation: How it takes part in one, if it is a part of a federated training.
        traceparent: The span of the attempt, in W3C's form, if its task belongs to a trace.
        gang: Which node it is, if the task runs on several workers.
        project: Whose task it is; null of a server that does not say.
        unreadable: Why the worker cannot read the rest; only `token` counts then. Never sent: `readable` sets it.
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
    """Read an offer of a server that may be of another version.

    Returns:
        The offer; one that cannot be read but for its tokens has `unreadable` set, so that its worker can say so.

    Raises:
        ValidationError: If not even its token can be read.
    """
    try:
        return Offer.model_validate(data)
    except ValidationError as error:
        token = data.get("token") if isinstance(data, Mapping) else None
        if not isinstance(token, str):
            raise
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        why = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in faults[:_TOLD_FAULTS])
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
    """Return a validator of a list of which an entry that cannot be read hides no other: it is left out, and logged."""

    def read(data: Any, all_of_them: ValidatorFunctionWrapHandler) -> Any:
        # All at once first: one that cannot be read is rare.
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
                logger.warning("The server says something that this version cannot read: %s", error)
        return tuple(found)

    return WrapValidator(read)


class Desired(Message):
    """What the server wants an attempt to be; repeated until the worker reports this generation."""

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
    """Return the id of the control command that carries out a desired pause; both ends name it alike."""
    return f"pause-{task_id}-{attempt}-{generation}"


class Behind(Message):
    """A finish that cannot be taken yet: the server lacks journal records."""

    token: str
    launch: str
    cursor: Whole


class ExchangeReply(Message):
    """The server's answer.

    Args:
        offers: Attempts to accept; repeated until they are accepted or void.
        accepted: Tokens whose accept is stored: the job may start. A node of a gang is named when all have accepted.
        points: Where a gang meets (host:port), by the accepted token of a node.
        finished: Tokens whose finish is stored or no longer matters: the worker may forget them.
        behind: Finishes to be sent again after shipping the journal from the cursor.
        drop: Tokens that are void: end the job, deliver nothing.
        discard: Tasks that were removed: their job folders are to be deleted. Repeated until that is reported.
        drain: Whether the worker shall finish what it has and then leave; null where it knows that already.
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
    """Records of one launch, as the trainer wrote them, one JSON text a record.

    The sequence number of `lines[0]` is `from_seq`; the following count up by one.
    """

    launch: str
    from_seq: Whole
    lines: tuple[str, ...]


class Cursor(Message):
    """Where the server stands in a stream: the next sequence number (journal) or byte (log) that it takes."""

    cursor: Whole
