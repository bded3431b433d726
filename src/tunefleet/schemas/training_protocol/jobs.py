"""Jobs in the backend part of the training-agent protocol: register, list, control, start (contracts B6, B7).

Bodies accept unknown fields, for clients of several generations; known fields are typed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from tunefleet.schemas.base import Line, Message
from tunefleet.schemas.training_protocol.training import MAX_COUNT, MAX_PATH, Open

JobId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class JobRegistration(Open):
    """Body of `POST /api/training/local/jobs`; the owner is that of the key, `user_id` is ignored."""

    job_id: JobId
    user_id: Line | None = None
    model_name: Line | None = None
    dataset_path: Line | None = None
    name: Line | None = Field(default=None, validation_alias=AliasChoices("name", "job_name"), max_length=200)
    status: str | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    total_steps: int | None = Field(default=None, ge=0, lt=MAX_COUNT)
    total_epochs: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    total_samples: int | None = Field(default=None, ge=0, lt=MAX_COUNT)


class JobRegistered(Message):
    """Response to a registration; the job reports with `job_token`."""

    success: Literal[True] = True
    persisted: Literal[True] = True
    job_id: str
    user_id: str
    job_token: str
    status: str


class StatusStored(Message):
    """Response to a status report."""

    success: Literal[True] = True
    status: str
    updated_at: datetime


class JobStatus(Message):
    """Status of a job (contract B7). Times in seconds, memory in GiB, `progress` in percent."""

    job_id: str
    status: str
    model_name: str | None = None
    model_display_name: str | None = None
    job_name: str | None = None
    dataset_name: str | None = None
    dataset_path: str | None = None
    gpu_total_memory_gb: float | None = None
    current_step: int = 0
    current_epoch: float = 0
    total_steps: int | None = None
    total_epochs: float | None = None
    total_samples: int | None = None
    progress: int = 0
    loss: float | None = None
    eval_loss: float | None = None
    best_eval_loss: float | None = None
    best_epoch: float | None = None
    best_step: int | None = None
    best_checkpoint_path: str | None = None
    loss_trend: Literal["improving", "stable", "degrading"] | None = None
    epochs_without_improvement: int | None = None
    train_perplexity: float | None = None
    eval_perplexity: float | None = None
    perplexity: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    gpu_memory_allocated_gb: float | None = None
    gpu_memory_reserved_gb: float | None = None
    gpu_utilization_percent: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    elapsed_seconds: float | None = None
    remaining_seconds: float | None = None
    error: str | None = None
    warning: str | None = None
    resumed_from_job_id: str | None = None
    resume_from_checkpoint: str | None = None
    updated_at: datetime | None = None
    agent_id: str | None = None
    parameter_updates: list[dict[str, Any]] = Field(default_factory=list)


class JobItem(Message):
    """A job in a list."""

    id: str
    job_id: str
    user_id: str
    name: str
    model_name: str | None = None
    dataset_path: str | None = None
    status: str
    error_message: str | None = None
    agent_id: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    created_at: datetime


class JobPage(Message):
    """A page of jobs, newest first."""

    jobs: list[JobItem]
    total: int
    limit: int
    offset: int


class JobList(Message):
    """The newest jobs."""

    success: Literal[True] = True
    count: int
    jobs: list[JobItem]


class ControlAction(Open):
    """Body of `POST /api/training/local/{id}/control`."""

    action: Literal["cancel", "pause", "resume"]
    checkpoint_path: str | None = None


class ControlDone(Message):
    """Result of an action."""

    success: Literal[True] = True
    action: str
    job_id: str
    result: dict[str, Any]


class ResumeJob(Open):
    """Body of `POST /api/training/local/{id}/resume`.

    Args:
        checkpoint_path: A path or name that ends with `checkpoint-<step>`; default: the newest.
        config_adjustments: Parameters by their names in a job's configuration, such as `learning_rate`.
    """

    checkpoint_path: str | None = Field(default=None, max_length=MAX_PATH)
    resume_from_best: bool = False
    config_adjustments: dict[str, Any] = Field(default_factory=dict)


class ResumedJob(Message):
    """The resumed job; `job_token` is included if the job reports itself."""

    success: Literal[True] = True
    job_id: str
    resumed_from: str
    checkpoint_path: str | None = None
    message: str
    job_token: str | None = None


class ParameterUpdate(Open):
    """Body of `PATCH /api/training/local/{id}/update-params`; at least one."""

    learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    batch_size: int | None = Field(default=None, ge=1, lt=MAX_COUNT)
    gradient_accumulation_steps: int | None = Field(default=None, ge=1, lt=MAX_COUNT)
    warmup_steps: int | None = Field(default=None, ge=0, lt=MAX_COUNT)


class ParametersUpdated(Message):
    """Accepted parameters; `fields` states for each when it takes effect."""

    success: Literal[True] = True
    updates: dict[str, Any]
    applied_at: datetime
    message: str
    fields: dict[str, str]
    command_id: str | None = None


class StartJob(Open):
    """Body of `POST /api/training/local/start`.

    Args:
        config_id: Id or name of an earlier workflow, whose file is submitted again.
        execution_id: Idempotency key.
        name: Name of the new job.
        dataset_path: Replaces the data in the workflow file.
    """

    config_id: str = Field(min_length=1, max_length=200)
    execution_id: str | None = Field(default=None, max_length=128)
    name: str | None = Field(default=None, max_length=200)
    dataset_path: str | None = None


class Started(Message):
    """A started job."""

    success: Literal[True] = True
    job_id: str
    message: str


class ErrorItem(Message):
    """One distinct error of a job."""

    timestamp: datetime | None = None
    level: str
    phase: str | None = None
    message: str
    dedupe_key: str
    count: int = 1


class Frame(Message):
    """A line of a traceback."""

    file: str
    line: int
    function: str
    code: str | None = None


class TracebackView(Message):
    """A traceback, raw and parsed."""

    raw: str
    frames: list[Frame]
    exception_type: str | None = None
    exception_message: str | None = None


class JobErrors(Message):
    """Errors of a job."""

    job_id: str
    error_summary: str | None
    errors: list[ErrorItem]
    traceback: TracebackView | None
    error_count: int
    unique_error_count: int


class Suggestion(Message):
    """A suggested configuration change."""

    field: str
    current_value: Any = None
    suggested_value: Any = None
    reason: str
    impact: str


class Analysis(Message):
    """Probable cause of a failure, derived from the last log lines."""

    error_type: str
    error_phase: str | None = None
    description: str
    confidence: Literal["high", "medium", "low"]
    suggestions: list[Suggestion]


class FailureAnalysis(Message):
    """Response of analyze-failure."""

    success: Literal[True] = True
    analysis: Analysis
    job_config: dict[str, Any]
