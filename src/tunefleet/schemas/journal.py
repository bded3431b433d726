"""Records of the journal: `journal/<launch>.jsonl`, one JSON object a line.

Every record has `seq` (from 0, without gaps), `at` (unix seconds) and `type`. `trainer_control` writes these with the
standard library alone and imports nothing of ours; a contract test holds what it writes against these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from tunefleet.schemas.base import Message


class Record(Message):
    """What every record has.

    Args:
        crc: CRC-32 of its line without this field; records from before there was one have none.
    """

    seq: int
    at: float
    crc: int | None = None


class LaunchRecord(Record):
    """First record of a launch: one process start within an attempt.

    Args:
        launch: Id of the launch, the file's stem.
        attempt: Number of the attempt; 0 if nobody counts.
        from_step: The step that the launch resumed at; 0 from the start. Points of earlier launches beyond it are
            superseded, and so are all of launches that did not lead to the checkpoint.
        checkpoint: Digest of the checkpoint that it resumed from.
        parent: The launch that made that checkpoint; without it, this one goes on from the launch before it.
    """

    type: Literal["launch"] = "launch"
    launch: str
    attempt: int = 0
    from_step: int = 0
    checkpoint: str | None = None
    parent: str | None = None
    pid: int = 0


class MetricRecord(Record):
    """Values that were logged at the end of a step.

    Args:
        series: `train`; a second Trainer in one script gets a series of its own.
        window: First and last step that the values speak of; windows of one series tile the run.
        values: Name → number. What JSON cannot hold is a string: `NaN`, `Infinity`, `-Infinity`.
    """

    type: Literal["metric"] = "metric"
    series: str = "train"
    step: int
    epoch: float | None = None
    window: tuple[int, int] | None = None
    values: dict[str, float | str]


class ProgressRecord(Record):
    """Where a training stands; at most one a second. Only the newest is kept by the server.

    Args:
        phase: `loading`, `fetching 37 of 90 MB` (of a model from the hub), `training`, `evaluating`, `saving`,
            `finishing`, or what another kind of task calls its work; `yielded` when its process is gone for a while,
            because somebody else uses its GPU.
        step_time_s: Smoothed duration of an optimizer step.
        tokens_per_s: Smoothed throughput over input tokens, padding not counted.
        rss_bytes: Resident memory of the trainer process, when the record is written: up to a second after `at`.
        gpu_bytes: Memory that torch has reserved on the GPU; null without one.
        gpu_allocated_bytes: What of it tensors take.
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
    """A checkpoint has its manifest: it is whole and can be resumed from."""

    type: Literal["checkpoint"] = "checkpoint"
    step: int
    name: str
    digest: str
    size_bytes: int
    stall_s: float = 0.0


class EventRecord(Record):
    """Something that a person wants to see in the task's history."""

    type: Literal["event"] = "event"
    name: str
    message: str
    level: Literal["info", "warning", "error"] = "info"
    data: dict[str, Any] = Field(default_factory=dict)


class PredictionRecord(Record):
    """Generated text of a sample, made at an evaluation."""

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
