"""The job folder: what lies where in `<results>/<task_id>/`, and the shapes of its files.

job.json                what to run, frozen              status.json   phase, step, last values; final state stays
journal/<launch>.jsonl  what the trainer reports         train.log     stdout and stderr
shipped.json            how far it was delivered         exit.json     how the process ended
train.log.1             what came before its newest cut
lock                    held by every process of the job
checkpoints/checkpoint-<step>/ + manifest.json           superseded/   checkpoints beyond a resume
final_lora/ | final_model/                               responses.json   the executor's result
overrides.json          what `set` has changed           keep.json       checkpoints that retention must leave
resume.json             what the launch resumed from     ranks/          why a rank failed
tokens/                 tokenised rows for later launches; gone once there is a result
control/                commands as files, where there is no port
.federation.json        how the job takes part in a federation; only its owner can read it
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from tunefleet.schemas.base import Message


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Paths of one job folder; touches nothing on disk."""

    root: Path

    @property
    def job_json(self) -> Path:
        """What to run; written and synced before the attempt is accepted."""
        return self.root / "job.json"

    @property
    def status_json(self) -> Path:
        """Phase, step and last values, written by the trainer."""
        return self.root / "status.json"

    @property
    def exit_json(self) -> Path:
        """How the trainer process ended, written by its keeper."""
        return self.root / "exit.json"

    @property
    def shipped_json(self) -> Path:
        """How far journal and log were delivered, written by the shipper."""
        return self.root / "shipped.json"

    @property
    def finish_json(self) -> Path:
        """The finish message that is to be delivered, written by the worker before its first try."""
        return self.root / "finish.json"

    @property
    def journal_dir(self) -> Path:
        """One file a launch."""
        return self.root / "journal"

    @property
    def log(self) -> Path:
        """Standard output and standard error of all launches; over its limit it is cut (`runtime.job_log`)."""
        return self.root / "train.log"

    @property
    def lock(self) -> Path:
        """Locked as long as any process of the job lives."""
        return self.root / "lock"

    @property
    def process_json(self) -> Path:
        """Which process the trainer is, written by itself before it starts."""
        return self.root / "process.json"

    @property
    def cancel_json(self) -> Path:
        """Names the launch that was to be cancelled; written before the first attempt to end it."""
        return self.root / "cancel.json"

    @property
    def commands_json(self) -> Path:
        """The control commands of the job and what became of them."""
        return self.root / "commands.json"

    @property
    def overrides_json(self) -> Path:
        """What `set` has changed so far; a resume applies it."""
        return self.root / "overrides.json"

    @property
    def keep_json(self) -> Path:
        """Checkpoints that retention must leave (`Keep`); written by who supervises, read by the trainer."""
        return self.root / "keep.json"

    @property
    def end_json(self) -> Path:
        """How the newest launch ended, written once its supervisor's owner has taken note."""
        return self.root / "end.json"

    @property
    def checkpoints_dir(self) -> Path:
        """`checkpoint-<step>` folders."""
        return self.root / "checkpoints"

    @property
    def tokens_dir(self) -> Path:
        """Tokenised rows that a later launch takes; deleted when the task has its result."""
        return self.root / "tokens"

    @property
    def federation_json(self) -> Path:
        """How the job takes part in a federation (`Participant`): the one file here that holds a secret."""
        return self.root / ".federation.json"

    @property
    def responses_json(self) -> Path:
        """The executor's result."""
        return self.root / "responses.json"


class MergeChild(Message):
    """A task that a run computes beside its own: `merge_children` of its job.

    The program says what it has for it under `children` of its result, by task id (`{"items": […], "usage": {…}}`, or
    `{"ok": false, "error": "…"}` if it fails by itself), and leaves its files in `children/<task id>/`.
    """

    task_id: str
    spec: dict[str, Any]
    inputs: dict[str, str] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class GangJob(Message):
    """Which node of a training on several workers a job is.

    Args:
        rank: Number of the node, from 0.
        nodes: How many there are.
        host: Where the first waits for the others.
        address: This machine's own, for the connections among the nodes.
        join_s: How long they wait for each other.
    """

    id: str
    rank: int
    nodes: int
    host: str
    port: int
    address: str
    join_s: float = 300.0


class Job(Message):
    """`job.json`: everything that a trainer process needs, and nothing secret.

    Args:
        program: `package.module:function`, called with the path of the job folder.
        inputs: For each pointer into the spec, the local path that stands for it.
        launch: Id of the launch that is to start; a new one for each process start.
        endpoint_dir: Where the control callback writes its endpoint folder.
        env: Variables that the process gets on top of the scrubbed environment.
        gpus: UUIDs of the GPUs that the process may see.
        processes: Ranks; more than one are started by torchrun.
        engine: It asks the warm engine of its GPUs, which is left to it.
        python: The interpreter of the environment that the kind needs; `None` for the one that Tunefleet runs in.
        from_step: Resume from the checkpoint of this step, not from the newest; what lies beyond is superseded.
        log_base: Position in the job's log at which the attempt's begins; filled in at the launch.
        log_bytes: Limit for `train.log` and `train.log.1` together; filled in at the launch.
        merge_children: Tasks that the program computes in the same run.
        gang: Which node it is, if the training has several: then it begins at `from_step`, or anew, whatever lies here.
        project: Whose task it is; None where there are no projects.
    """

    job_id: str
    task_id: str
    attempt: int
    launch: str
    kind: str
    name: str
    program: str
    spec: dict[str, Any]
    inputs: dict[str, str] = Field(default_factory=dict)
    endpoint_dir: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    processes: int = 1
    engine: bool = False
    python: str | None = None
    from_step: int | None = None
    log_base: int = 0
    log_bytes: int | None = None
    merge_children: tuple[MergeChild, ...] = ()
    gang: GangJob | None = None
    project: str | None = None


class Participant(Message):
    """`.federation.json`: how a part of a federated training takes part; written before each launch.

    Args:
        url: The server, as the worker knows it.
        worker: Its name there.
        attempt: Number of the task's attempt; None if the server does not tell.
    """

    url: str
    id: str
    worker: str
    token: str
    attempt: int | None = None


class JobStatus(Message):
    """`status.json`: where the trainer stands; the last one stays.

    `state` is final once it is `completed`, `stopped`, `paused`, `aborted`, `failed` or, as its runner says of a
    process that a signal has ended, `killed`. `intent` is written before a deliberate end, so that an end without it is
    known to be a crash.
    """

    state: Literal["starting", "running", "completed", "stopped", "paused", "aborted", "failed", "killed"]
    phase: str = "loading"
    step: int = 0
    max_steps: int = 0
    eta_s: float | None = None
    at: float
    pid: int
    intent: Literal["stop", "pause", "preempt", "abort"] | None = None
    error: str | None = None
    error_kind: Literal["input", "oom", "disk", "network", "diverged", "bug"] | None = None
    traceback: str | None = None
    launch: str | None = None
    """Which launch says so."""
    records: int | None = None
    """How many records its journal has, at a proper end."""
    values: dict[str, float | str] = Field(default_factory=dict)


class Keep(Message):
    """`keep.json`: names of checkpoints that must not be deleted now.

    Args:
        uploading: They are being read.
        pinned: Somebody wants to keep them.
    """

    uploading: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()


class JobProcess(Message):
    """`process.json`: the trainer process of a launch, named so that a recycled pid is not taken for it.

    Args:
        pid: Also the id of its process group.
        process_started_at: Seconds since boot; null where the system does not say.
        log_offset: Position in the job's log at which this launch begins.
        warm: Whether it was forked with the libraries already imported.
        keeper_pid: Its parent, which waits for it; 0 if unknown.
        keeper_started_at: Seconds since boot.
    """

    launch: str
    pid: int
    process_started_at: float | None = None
    boot_id: str | None = None
    started_at: float
    log_offset: int = 0
    warm: bool = False
    keeper_pid: int = 0
    keeper_started_at: float | None = None


class JobExit(Message):
    """`exit.json`: what the keeper saw when the process ended."""

    launch: str
    pid: int
    returncode: int
    """As `subprocess` gives it: negative for a signal."""
    at: float


class Shipped(Message):
    """`shipped.json`: how far journal and log were delivered."""

    cursors: dict[str, int] = Field(default_factory=dict)
    """Launch → next sequence number to deliver."""
    offsets: dict[str, int] = Field(default_factory=dict)
    """Launch → byte offset in its journal file of that record."""
    log_offset: int = 0
    log_base: int = 0
    """Position in the job's log at which the current attempt's starts."""
    log_skipped: int = 0
    """How many of the attempt's bytes were dropped before they could be delivered."""
    attempt: int = 0
