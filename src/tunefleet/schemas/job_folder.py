"""The job folder: layout of `<results>/<task_id>/`, and the formats of its files.

job.json                what to run, frozen              status.json   phase, step, last values; final state stays
journal/<launch>.jsonl  what the trainer reports         train.log     stdout and stderr
shipped.json            how far it was delivered         exit.json     how the process ended
train.log.1             what came before its newest cut
lock                    held by every process of the job
checkpoints/checkpoint-<step>/ + manifest.json           superseded/   checkpoints beyond a resume
final_lora/ | final_model/                               responses.json   the executor's result
overrides.json          what `set` has changed           keep.json       checkpoints that retention must keep
resume.json             what the launch resumed from     ranks/          why a rank failed
tokens/                 tokenized rows for later launches; removed once there is a result
control/                commands as files, without a port
.federation.json        participation in a federation; readable by its owner only
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from tunefleet.schemas.base import Message


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Paths of one job folder; does no I/O."""

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
        """How the trainer process ended, written by its parent process."""
        return self.root / "exit.json"

    @property
    def shipped_json(self) -> Path:
        """How far journal and log were delivered, written by the shipper."""
        return self.root / "shipped.json"

    @property
    def finish_json(self) -> Path:
        """The finish message to deliver, written by the worker before its first attempt."""
        return self.root / "finish.json"

    @property
    def journal_dir(self) -> Path:
        """One file per launch."""
        return self.root / "journal"

    @property
    def log(self) -> Path:
        """Standard output and standard error of all launches; truncated at its limit (`runtime.job_log`)."""
        return self.root / "train.log"

    @property
    def lock(self) -> Path:
        """Locked as long as any process of the job lives."""
        return self.root / "lock"

    @property
    def process_json(self) -> Path:
        """Identity of the trainer process, written by the process before it starts."""
        return self.root / "process.json"

    @property
    def cancel_json(self) -> Path:
        """The cancelled launch; written before the first attempt to end it."""
        return self.root / "cancel.json"

    @property
    def commands_json(self) -> Path:
        """The control commands of the job and their outcomes."""
        return self.root / "commands.json"

    @property
    def overrides_json(self) -> Path:
        """What `set` has changed so far; a resume applies it."""
        return self.root / "overrides.json"

    @property
    def keep_json(self) -> Path:
        """Checkpoints that retention must keep (`Keep`); written by the supervisor, read by the trainer."""
        return self.root / "keep.json"

    @property
    def end_json(self) -> Path:
        """How the newest launch ended, written once the supervisor's owner has processed it."""
        return self.root / "end.json"

    @property
    def checkpoints_dir(self) -> Path:
        """`checkpoint-<step>` folders."""
        return self.root / "checkpoints"

    @property
    def tokens_dir(self) -> Path:
        """Tokenized rows for later launches; deleted when the task has its result."""
        return self.root / "tokens"

    @property
    def federation_json(self) -> Path:
        """Participation in a federation (`Participant`): the only file here that contains a secret."""
        return self.root / ".federation.json"

    @property
    def responses_json(self) -> Path:
        """The executor's result."""
        return self.root / "responses.json"


class MergeChild(Message):
    """A coalesced task that a run also computes: `merge_children` of its job.

    The program returns its result in `children` of its own result, by task id (`{"items": […], "usage": {…}}`, or
    `{"ok": false, "error": "…"}` if only this task fails), and writes its files to `children/<task id>/`.
    """

    task_id: str
    spec: dict[str, Any]
    inputs: dict[str, str] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class GangJob(Message):
    """The node of a multi-node training task that a job is.

    Args:
        rank: Number of the node, from 0.
        nodes: Number of nodes.
        host: Rendezvous host, the first node.
        address: Address of this machine for connections between the nodes.
        join_s: Rendezvous timeout, in seconds.
    """

    id: str
    rank: int
    nodes: int
    host: str
    port: int
    address: str
    join_s: float = 300.0


class Job(Message):
    """`job.json`: everything that a trainer process needs, without secrets.

    Args:
        program: `package.module:function`, called with the path of the job folder.
        inputs: Pointer into the spec → local path.
        launch: Id of the launch; a new one for each process start.
        endpoint_dir: Where the control callback writes its endpoint folder.
        env: Variables in addition to the scrubbed environment.
        gpus: UUIDs of the visible GPUs.
        processes: Ranks; more than one are started by torchrun.
        engine: Whether it uses the warm engine on its GPUs.
        python: Interpreter of the task type's environment; `None` for Tunefleet's own.
        from_step: Resume from the checkpoint of this step instead of the newest; later ones are superseded.
        log_base: Position in the job's log at which the attempt starts; set at the launch.
        log_bytes: Limit for `train.log` and `train.log.1` together; set at the launch.
        merge_children: Coalesced tasks of the same run.
        gang: The node, for multi-node training; it then starts at `from_step` or from scratch, ignoring local files.
        project: Project of the task; `None` without projects.
        prepared_at: Unix time at which the worker had all inputs and launched the job.
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
    prepared_at: float | None = None


class Participant(Message):
    """`.federation.json`: participation of a part of a federated task; written before each launch.

    Args:
        url: URL of the server, as known by the worker.
        worker: Its name in the federation.
        attempt: Number of the task's attempt; `None` if the server does not send it.
    """

    url: str
    id: str
    worker: str
    token: str
    attempt: int | None = None


class JobStatus(Message):
    """`status.json`: status of the trainer; the last one is kept.

    `state` is final if it is `completed`, `stopped`, `paused`, `aborted`, `failed`, or `killed`, which the runner
    writes for a process that was ended by a signal. `intent` is written before a deliberate end, so that an end without
    it is recognized as a crash.
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
    error_kind: Literal["input", "oom", "disk", "network", "diverged", "machine", "bug"] | None = None
    traceback: str | None = None
    launch: str | None = None
    """The launch that wrote the status."""
    records: int | None = None
    """Number of journal records, at a regular end."""
    values: dict[str, float | str] = Field(default_factory=dict)


class Keep(Message):
    """`keep.json`: names of checkpoints that must not be deleted now.

    Args:
        uploading: Checkpoints that are being uploaded.
        pinned: Checkpoints pinned by a user.
    """

    uploading: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()


class JobProcess(Message):
    """`process.json`: the trainer process of a launch, identified so that a recycled pid is not mistaken for it.

    Args:
        pid: Also the id of its process group.
        process_started_at: Seconds since boot; `None` if the system does not provide it.
        log_offset: Position in the job's log at which this launch starts.
        warm: Whether it was forked with the libraries already imported.
        keeper_pid: Parent process, which waits for it; 0 if unknown.
        keeper_started_at: Start of the parent process; seconds since boot.
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
    """`exit.json`: exit of the process, as seen by its parent process."""

    launch: str
    pid: int
    returncode: int
    """As in `subprocess`: negative for a signal."""
    at: float


class Shipped(Message):
    """`shipped.json`: how far journal and log were delivered."""

    cursors: dict[str, int] = Field(default_factory=dict)
    """Launch → next sequence number to deliver."""
    offsets: dict[str, int] = Field(default_factory=dict)
    """Launch → byte offset in its journal file of that record."""
    log_offset: int = 0
    log_base: int = 0
    """Position in the job's log at which the current attempt starts."""
    log_skipped: int = 0
    """Bytes of the attempt that were dropped before they could be delivered."""
    attempt: int = 0
