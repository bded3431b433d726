"""Reports of a job to a backend, and their queries: points, log lines, predictions (contract B6).

Bodies accept unknown fields, for clients of several generations; known fields are typed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from tunefleet.schemas.base import Message
from tunefleet.schemas.training_protocol.training import MAX_COUNT, Open, TrainingMetrics

# Maximum number of points per batch.
MAX_POINTS = 5_000


class ReportedPoint(TrainingMetrics):
    """One reported point; derived values (`loss_trend`, `best_*`) are computed by the server, never accepted."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True, json_schema_extra={})

    step: int = Field(ge=0, lt=MAX_COUNT)
    total_steps: int | None = Field(default=None, ge=0, lt=MAX_COUNT)
    elapsed_seconds: float | None = None
    remaining_seconds: float | None = None


class MetricBatch(Open):
    """Body of `POST /api/training/local/metrics`."""

    job_id: str
    metrics: Annotated[list[ReportedPoint], Field(max_length=MAX_POINTS)]


class Done(Message):
    """Data was stored; `count` is the number of received entries."""

    success: Literal[True] = True
    count: int | None = None


class LogLines(Message):
    """Body of `POST …/{job_id}/logs`.

    Args:
        logs: Lines, each `[YYYY-MM-DD HH:MM:SS] text` in UTC.
        offset: Extension: number of the first line within the attempt, so that a repetition is not stored twice.
    """

    logs: list[str]
    offset: int | None = Field(default=None, ge=0, lt=MAX_COUNT)


class LogsStored(Message):
    """Response to log lines; `total_logs` is the attempt's total, and the `offset` of the next lines."""

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
    """A stored point; units as in `TrainingMetrics`."""

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


class PredictionItem(Open):
    """A reported sample prediction."""

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
    """Predictions, in chronological order."""

    job_id: str
    predictions: list[dict[str, Any]]
    total_count: int
    epoch_count: int
    limit: int
    offset: int


class PredictionEpochs(Message):
    """Epochs and steps with predictions."""

    job_id: str
    epochs: list[dict[str, Any]]


class PredictionTrends(Message):
    """Mean metrics of the predictions by step."""

    job_id: str
    trends: list[dict[str, Any]]
