"""Bodies of the training-agent protocol: what an agent serves, what it reports to a backend, and how it is polled.

The names are the documents' (contracts B2 to B7), in the spelling that is on the wire. Agent and server share them;
both take unknown fields, since clients of several generations exist.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import AliasChoices, ConfigDict, Field

from tunefleet.schemas.base import Message
from tunefleet.schemas.worker_link import Capabilities, ResumeFrom

# Steps and the like stay below what every reader of JSON holds exactly.
MAX_COUNT: Final = 2**53
# Characters of a checkpoint's path.
MAX_PATH: Final = 4096


class JobState(StrEnum):
    """The status of a job in this protocol."""

    QUEUED = "queued"
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether it never changes again."""
        return self in {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}


class Open(Message):
    """A body whose unknown fields are kept."""

    model_config = ConfigDict(extra="allow", frozen=True)


class TrainingConfig(Open):
    """What is to be trained; `agent.translate` turns it into a task's spec."""

    model: dict[str, Any]
    tokenizer: dict[str, Any]
    training: dict[str, Any]
    data: dict[str, Any]
    provider: str | None = None
    tools: list[Any] = Field(default_factory=list)
    evaluation: dict[str, Any] | None = None
    tensorboard: dict[str, Any] | None = None
    predictions: dict[str, Any] | None = None
    seed: int | None = None


class TrainingJobRequest(Open):
    """Body of the agent's `POST /api/training/execute`."""

    config: TrainingConfig
    dataset_path: str
    execution_id: str
    name: str
    user_id: str
    access_token: str
    job_token: str


class TrainingJobStatus(Message):
    """What the agent's `GET /api/training/status/{job_id}` answers."""

    job_id: str
    status: JobState
    current_step: int = 0
    current_epoch: int = 0
    total_steps: int = 0
    total_epochs: int = 0
    progress: float = 0.0
    loss: float | None = None
    eval_loss: float | None = None
    learning_rate: float | None = None
    gpu_memory_allocated_gb: float | None = None
    gpu_utilization_percent: float | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    error: str | None = None
    phase: str | None = None
    queue_position: int | None = None
    resumable: bool = False
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    eta_s: float | None = None


class TrainingMetrics(Message):
    """One point, as `PUT …/{job_id}/metrics` carries it; None values are left out on the wire.

    Memory in GiB, rates per second, utilisation in percent. `epoch` stays a whole number where it is one: other
    backends keep it in a column of integers. `perplexity` and `eval_perplexity` are the same number:
    readers of either name exist.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    step: int
    epoch: int | float = 0.0
    train_loss: float | None = Field(default=None, validation_alias=AliasChoices("train_loss", "loss"))
    eval_loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    gpu_memory_allocated_gb: float | None = None
    gpu_memory_reserved_gb: float | None = None
    gpu_utilization_percent: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    train_perplexity: float | None = None
    eval_perplexity: float | None = None
    perplexity: float | None = None
    timestamp: str | None = None
    total_steps: int | None = None
    """Ours: lets a backend show progress."""


class StatusPatch(Open):
    """Body of `PATCH …/{job_id}/status`; `checkpoint` and `step` are ours, sent with `paused`."""

    status: str
    error: str | None = None
    step: int | None = Field(default=None, ge=0, lt=MAX_COUNT)
    checkpoint: str | None = Field(default=None, max_length=MAX_PATH)


class PolledJob(Message):
    """A job as an agent is offered it.

    Args:
        config: In the shape of `TrainingConfig`.
        spec: Ours: the task's spec, which `config` is a translation of; our agent prefers it.
        inputs: Ours: for each pointer into the spec the digest of an artifact to fetch with the job token.
    """

    id: str
    model_name: str
    dataset_path: str
    config: dict[str, Any]
    total_epochs: int | None = None
    total_steps: int | None = None
    created_at: datetime | None = None
    name: str | None = None
    kind: str | None = None
    spec: dict[str, Any] | None = None
    inputs: dict[str, dict[str, str]] = Field(default_factory=dict)
    attempt: int | None = None
    resume: ResumeFrom | None = None
    """Ours: where it goes on, if it has run before."""
    traceparent: str | None = None
    """Ours: the span of the attempt that was claimed, in W3C's form, if its task belongs to a trace."""


class AgentCommand(Message):
    """Something an agent is to do; ours. Repeated on every poll until its outcome is reported.

    Args:
        job_id: The job; None for a verb of the agent itself.
        command: A `ControlCommand` value or `resume`, `cancel` for jobs; an `AgentVerb` value for the agent.
    """

    command_id: str
    command: str
    job_id: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class AgentVerb(StrEnum):
    """The fixed things that an agent or a worker can be told about itself; there is no free shell."""

    RESTART = "restart"
    UPDATE_CONFIG = "update-config"
    COLLECT_DIAGNOSTICS = "collect-diagnostics"
    UPGRADE = "upgrade"


class PollReply(Message):
    """What `GET /api/training/agent/poll` answers.

    Args:
        wait_s: Ours: how long the server held the poll; None from a server that does not hold.
        drop: Ours: jobs that are no longer this agent's; they are ended and nothing more is reported.
    """

    job: PolledJob | None = None
    poll_interval_seconds: int = 10
    message: str | None = None
    wait_s: float | None = None
    commands: tuple[AgentCommand, ...] = ()
    drop: tuple[str, ...] = ()


class ClaimReply(Message):
    """What `POST /api/training/agent/claim/{job_id}` answers."""

    success: Literal[True] = True
    job_token: str
    job: PolledJob


class AgentOutcome(Message):
    """What became of a command."""

    command_id: str
    state: Literal["acknowledged", "applied", "durable", "failed"]
    step: int | None = Field(default=None, ge=0, lt=MAX_COUNT)
    checkpoint: str | None = None
    message: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class Heartbeat(Message):
    """Body of `POST /api/training/agent/heartbeat`; ours. It renews the leases of `holding`.

    Args:
        holding: Jobs that the agent has claimed and not ended.
        capabilities: What the machine is and has; sent with the first one and when it changes.
        load: `cpu_percent`, `memory_used_bytes`, `disk_free_bytes`, `net_sent_bytes`, `net_received_bytes`, and per GPU
            what NVML says.
        want: How many more jobs it would take.
    """

    holding: tuple[str, ...] = ()
    capabilities: Capabilities | None = None
    load: dict[str, Any] = Field(default_factory=dict)
    outcomes: tuple[AgentOutcome, ...] = ()
    want: int = 0


class HeartbeatReply(Message):
    """The server's answer to a heartbeat."""

    ok: Literal[True] = True
    lease_s: float
    commands: tuple[AgentCommand, ...] = ()
    drop: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    """Ids of outcomes that are stored."""
