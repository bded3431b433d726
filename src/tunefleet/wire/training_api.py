"""Bodies and views of the backend half of the training-agent protocol, as our server serves it (contract B6 and B7).

Bodies take unknown fields, since clients of several generations exist; what is known of them is typed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, ConfigDict, Field

from tunefleet.wire.base import Message
from tunefleet.wire.training import Open, TrainingMetrics

MAX_POINTS = 5_000
"""The most points in one batch."""
MAX_COUNT = 2**53
"""Steps and the like stay below what every reader of JSON holds exactly."""

JobId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class ReportedPoint(TrainingMetrics):
    """One reported point; what is derived of earlier ones (`loss_trend`, `best_*`) is worked out here, never taken."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True, json_schema_extra={})

    step: int = Field(ge=0, lt=MAX_COUNT)
    total_steps: int | None = Field(default=None, ge=0, lt=MAX_COUNT)
    elapsed_seconds: float | None = None
    remaining_seconds: float | None = None


class MetricBatch(Open):
    """Body of `POST /api/training/local/metrics`."""

    job_id: str
    metrics: Annotated[list[ReportedPoint], Field(max_length=MAX_POINTS)]


class JobRegistration(Open):
    """Body of `POST /api/training/local/jobs`; whose the job is follows the key, whatever `user_id` says."""

    job_id: JobId
    user_id: str | None = None
    model_name: str | None = None
    dataset_path: str | None = None
    name: str | None = Field(default=None, validation_alias=AliasChoices("name", "job_name"), max_length=200)
    status: str | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    total_steps: int | None = Field(default=None, ge=0, lt=MAX_COUNT)
    total_epochs: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    total_samples: int | None = Field(default=None, ge=0, lt=MAX_COUNT)


class JobRegistered(Message):
    """The answer to a registration; `job_token` is what the job reports with."""

    success: Literal[True] = True
    persisted: Literal[True] = True
    job_id: str
    user_id: str
    job_token: str
    status: str


class Done(Message):
    """Something was stored; `count` says how much of it was new to us or not."""

    success: Literal[True] = True
    count: int | None = None


class StatusStored(Message):
    """The answer to a status."""

    success: Literal[True] = True
    status: str
    updated_at: datetime


class LogsStored(Message):
    """The answer to log lines; `total_logs` counts the attempt's, and is the `offset` of the next ones."""

    success: Literal[True] = True
    logs_appended: int
    total_logs: int


class LogPage(Message):
    """Lines of a job's log."""

    logs: list[str]
    total_lines: int
    offset: int
    limit: int


class MetricRow(Message):
    """A point as it is read back; all rates and memory as in `TrainingMetrics`."""

    job_id: str
    step: int
    epoch: float | None = None
    train_loss: float | str | None = None
    eval_loss: float | str | None = None
    learning_rate: float | str | None = None
    grad_norm: float | str | None = None
    gpu_memory_allocated_gb: float | str | None = None
    gpu_memory_reserved_gb: float | str | None = None
    gpu_utilization_percent: float | str | None = None
    perplexity: float | str | None = None
    eval_perplexity: float | str | None = None
    train_perplexity: float | str | None = None
    samples_per_second: float | str | None = None
    tokens_per_second: float | str | None = None
    timestamp: datetime


class MetricRows(Message):
    """All points of a job."""

    job_id: str
    metrics: list[MetricRow]


class MetricPage(MetricRows):
    """A page of points."""

    total: int
    limit: int
    offset: int


class JobStatus(Message):
    """Where a job stands (contract B7). Times in seconds, memory in GiB, `progress` in percent."""

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
    """What an action led to."""

    success: Literal[True] = True
    action: str
    job_id: str
    result: dict[str, Any]


class ResumeJob(Open):
    """Body of `POST /api/training/local/{id}/resume`.

    Args:
        checkpoint_path: A path or name that ends with `checkpoint-<step>`; by default the newest.
        config_adjustments: Parameters by their names in a job's configuration, such as `learning_rate`.
    """

    checkpoint_path: str | None = None
    resume_from_best: bool = False
    config_adjustments: dict[str, Any] = Field(default_factory=dict)


class ResumedJob(Message):
    """The job that goes on; `job_token` where it was registered by whom it reports for."""

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
    """What was taken; `fields` says for each parameter when it takes effect."""

    success: Literal[True] = True
    updates: dict[str, Any]
    applied_at: datetime
    message: str
    fields: dict[str, str]
    command_id: str | None = None


class ErrorItem(Message):
    """One kind of error that a job ran into."""

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
    """A traceback, raw and taken apart."""

    raw: str
    frames: list[Frame]
    exception_type: str | None = None
    exception_message: str | None = None


class JobErrors(Message):
    """What went wrong in a job."""

    job_id: str
    error_summary: str | None
    errors: list[ErrorItem]
    traceback: TracebackView | None
    error_count: int
    unique_error_count: int


class Suggestion(Message):
    """A change of the configuration that may help."""

    field: str
    current_value: Any = None
    suggested_value: Any = None
    reason: str
    impact: str


class Analysis(Message):
    """Why a job failed, as far as its last words tell."""

    error_type: str
    error_phase: str | None = None
    description: str
    confidence: Literal["high", "medium", "low"]
    suggestions: list[Suggestion]


class FailureAnalysis(Message):
    """The answer of analyze-failure."""

    success: Literal[True] = True
    analysis: Analysis
    job_config: dict[str, Any]


class PredictionItem(Open):
    """Text that a model wrote for a sample, as it is reported."""

    step: int = Field(default=0, ge=0, lt=MAX_COUNT)
    epoch: float | None = None
    sample_index: int = 0
    prompt: str = ""
    prediction: str = ""
    ground_truth: str | None = None


class PredictionBatch(Open):
    """Body of `POST /api/training/local/predictions`."""

    job_id: str
    predictions: Annotated[list[PredictionItem], Field(max_length=MAX_POINTS)]


class PredictionPage(Message):
    """Predictions, in the order in which they were made."""

    job_id: str
    predictions: list[dict[str, Any]]
    total_count: int
    epoch_count: int
    limit: int
    offset: int


class PredictionEpochs(Message):
    """At which epochs and steps there are predictions."""

    job_id: str
    epochs: list[dict[str, Any]]


class PredictionTrends(Message):
    """Measures of the predictions over the steps, as means."""

    job_id: str
    trends: list[dict[str, Any]]


class StartJob(Open):
    """Body of `POST /api/training/local/start`.

    Args:
        config_id: The id or the name of a workflow that was submitted before; its document is submitted again.
        execution_id: A repeated start with it starts nothing more.
        name: What to call the new job.
        dataset_path: Other data than the document names.
    """

    config_id: str = Field(min_length=1, max_length=200)
    execution_id: str | None = Field(default=None, max_length=128)
    name: str | None = Field(default=None, max_length=200)
    dataset_path: str | None = None


class Started(Message):
    """A job that was started."""

    success: Literal[True] = True
    job_id: str
    message: str


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
    """Whether it renews what it holds by heartbeats; one that does not is given up later."""
    load: dict[str, Any] = Field(default_factory=dict)
    total_jobs: int | None = None
    completed_jobs: int | None = None
    running_jobs: int | None = None


class AgentList(Message):
    """All agents that the caller may see."""

    agents: list[AgentView]
    online_threshold_seconds: int


class AgentReply(Message):
    """One agent."""

    agent: AgentView


class AgentRemoved(Message):
    """An agent was forgotten."""

    success: Literal[True] = True
    message: str
