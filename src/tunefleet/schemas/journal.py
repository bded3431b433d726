"""Records of the journal: `journal/<launch>.jsonl`, one JSON object per line.

Every record has `seq` (from 0, without gaps), `at` (unix seconds) and `type`. `trainer_control` writes them with the
standard library only and imports no other package; a contract test checks its output against these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from tunefleet.schemas.base import Message


class Record(Message):
    """Fields of every record.

    Args:
        crc: CRC-32 of its line without this field; `None` in records of older versions.
    """

    seq: int
    at: float
    crc: int | None = None


class LaunchRecord(Record):
    """First record of a launch: one process start within an attempt.

    Args:
        launch: Id of the launch, the file's stem.
        attempt: Number of the attempt; 0 if unknown.
        from_step: The step from which the launch resumed; 0 for a start from scratch. Later points of earlier launches
            are superseded, and so are all points of launches that did not lead to the checkpoint.
        checkpoint: Digest of the checkpoint from which it resumed.
        parent: The launch that created that checkpoint; default: the previous launch.
    """

    type: Literal["launch"] = "launch"
    launch: str
    attempt: int = 0
    from_step: int = 0
    checkpoint: str | None = None
    parent: str | None = None
    pid: int = 0


class MetricRecord(Record):
    """Values logged at the end of a step.

    Args:
        series: `train`; a second Trainer in the same script gets its own series.
        window: First and last step that the values cover; the windows of a series are contiguous.
        values: Name → number. Values without a JSON form are strings: `NaN`, `Infinity`, `-Infinity`.
    """

    type: Literal["metric"] = "metric"
    series: str = "train"
    step: int
    epoch: float | None = None
    window: tuple[int, int] | None = None
    values: dict[str, float | str]


class ProgressRecord(Record):
    """Progress of a job, at most once per second. The server keeps only the newest record.

    Args:
        phase: `loading`, `fetching 37 of 90 MB` (of a model from the Hub), `training`, `evaluating`, `saving`,
            `finishing`, or a phase of another task type; `yielded` while its process is stopped because another process
            uses its GPU.
        step_time_s: Smoothed duration of an optimizer step.
        tokens_per_s: Smoothed throughput in input tokens, without padding.
        rss_bytes: Resident memory of the trainer process at the time of writing, up to a second after `at`.
        gpu_bytes: GPU memory reserved by torch; `None` without a GPU.
        gpu_allocated_bytes: GPU memory allocated to tensors.
    """

    type: Literal["progress"] = "progress"
    phase: str
    step: int = 0
    max_steps: int = 0
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    eta_s: float | None = None
    rss_bytes: int | None = None
    gpu_bytes: int | None = None
    gpu_allocated_bytes: int | None = None


class CheckpointRecord(Record):
    """A checkpoint is complete: it has its manifest and can be resumed from."""

    type: Literal["checkpoint"] = "checkpoint"
    step: int
    name: str
    digest: str
    size_bytes: int
    stall_s: float = 0.0


class EventRecord(Record):
    """An event for the task's history."""

    type: Literal["event"] = "event"
    name: str
    message: str
    level: Literal["info", "warning", "error"] = "info"
    data: dict[str, Any] = Field(default_factory=dict)


class PredictionRecord(Record):
    """A sample answer, generated at an evaluation."""

    type: Literal["prediction"] = "prediction"
    step: int
    index: int
    prompt: str
    output: str
    reference: str | None = None


AnyRecord = Annotated[
    LaunchRecord | MetricRecord | ProgressRecord | CheckpointRecord | EventRecord | PredictionRecord,
    Field(discriminator="type"),
]
ANY_RECORD: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)
