"""Bodies of the training-agent protocol: the agent's API, its reports to a backend, and its polls.

Names are those of the protocol (contracts B2 to B7), in wire spelling. Agent and server share them; both accept unknown
fields, for clients of several generations.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import AliasChoices, ConfigDict, Field

from tunefleet.schemas.base import Message
from tunefleet.schemas.worker_link import Capabilities, ResumeFrom

# Counts stay below 2^53, which every JSON parser represents exactly.
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
    """A body that keeps unknown fields."""

    model_config = ConfigDict(extra="allow", frozen=True)


class TrainingConfig(Open):
    """A training configuration; `agent.translate` converts it to a task's spec."""

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

    # Built at import: FastAPI, which builds its validator, would warn about it at the first request.
    model_config = ConfigDict(defer_build=False)

    config: TrainingConfig
    dataset_path: str
    execution_id: str
    name: str
    user_id: str
    access_token: str
    job_token: str


class TrainingJobStatus(Message):
    """Response of the agent's `GET /api/training/status/{job_id}`."""

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
    """One point in `PUT …/{job_id}/metrics`; null values are omitted on the wire.

    Memory in GiB, rates per second, utilization in percent. `epoch` remains an integer if it is one, since other
    backends store it as an integer. `perplexity` and `eval_perplexity` have the same value, for clients of either name.
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
    """Extension: for the progress display of a backend."""


class StatusPatch(Open):
    """Body of `PATCH …/{job_id}/status`; `checkpoint` and `step` are extensions, sent with `paused`."""

    status: str
    error: str | None = None
    step: int | None = Field(default=None, ge=0, lt=MAX_COUNT)
    checkpoint: str | None = Field(default=None, max_length=MAX_PATH)


class PolledJob(Message):
    """A job offered to an agent.

    Args:
        config: In the format of `TrainingConfig`.
        spec: Extension: the task's spec, from which `config` is derived; Tunefleet's agent prefers it.
        inputs: Extension: pointer into the spec → digest of an artifact to fetch with the job token.
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
    """Extension: where it resumes, if it has run before."""
    traceparent: str | None = None
    """Extension: span of the claimed attempt in W3C format, if its task belongs to a trace."""


class AgentCommand(Message):
    """Extension: a command to an agent, repeated on every poll until its outcome is reported.

    Args:
        job_id: The job; null for a command to the agent itself.
        command: For jobs a `ControlCommand` value, `resume` or `cancel`; for the agent an `AgentVerb` value.
    """

    command_id: str
    command: str
    job_id: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class AgentVerb(StrEnum):
    """Admin commands to an agent or a worker; a fixed set, since there is no remote shell."""

    RESTART = "restart"
    UPDATE_CONFIG = "update-config"
    COLLECT_DIAGNOSTICS = "collect-diagnostics"
    UPGRADE = "upgrade"


class PollReply(Message):
    """Response of `GET /api/training/agent/poll`.

    Args:
        wait_s: Extension: how long the server held the poll; null without long polling.
        drop: Extension: jobs that no longer belong to this agent; it ends them and stops reporting.
    """

    job: PolledJob | None = None
    poll_interval_seconds: int = 10
    message: str | None = None
    wait_s: float | None = None
    commands: tuple[AgentCommand, ...] = ()
    drop: tuple[str, ...] = ()


class ClaimReply(Message):
    """Response of `POST /api/training/agent/claim/{job_id}`."""

    success: Literal[True] = True
    job_token: str
    job: PolledJob


class AgentOutcome(Message):
    """Outcome of a command."""

    command_id: str
    state: Literal["acknowledged", "applied", "durable", "failed"]
    step: int | None = Field(default=None, ge=0, lt=MAX_COUNT)
    checkpoint: str | None = None
    message: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class Heartbeat(Message):
    """Body of `POST /api/training/agent/heartbeat`, an extension that renews the leases of `holding`.

    Args:
        holding: Claimed jobs that have not ended.
        capabilities: Capabilities of the machine; sent with the first heartbeat and when they change.
        load: `cpu_percent`, `memory_used_bytes`, `disk_free_bytes`, `net_sent_bytes`, `net_received_bytes`, and per GPU
            the values of NVML.
        want: Number of further jobs that it would accept.
    """

    holding: tuple[str, ...] = ()
    capabilities: Capabilities | None = None
    load: dict[str, Any] = Field(default_factory=dict)
    outcomes: tuple[AgentOutcome, ...] = ()
    want: int = 0


class HeartbeatReply(Message):
    """Response to a heartbeat."""

    ok: Literal[True] = True
    lease_s: float
    commands: tuple[AgentCommand, ...] = ()
    drop: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    """Ids of stored outcomes."""


class AgentView(Message):
    """An agent."""

    agent_id: str
    user_id: str
    hostname: str | None
    platform: str | None
    version: str | None
    status: Literal["online", "offline"]
    is_online: bool
    last_poll_at: datetime | None
    registered_at: datetime
    has_lease: bool
    """Whether it renews its jobs with heartbeats; otherwise it counts as lost later."""
    load: dict[str, Any] = Field(default_factory=dict)
    total_jobs: int | None = None
    completed_jobs: int | None = None
    running_jobs: int | None = None


class AgentList(Message):
    """All agents visible to the caller."""

    agents: list[AgentView]
    online_threshold_seconds: int


class AgentReply(Message):
    """One agent."""

    agent: AgentView


class AgentRemoved(Message):
    """An agent was removed."""

    success: Literal[True] = True
    message: str
