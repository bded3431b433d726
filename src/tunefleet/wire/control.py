"""The control protocol of rank 0, and the files that make a job findable."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from tunefleet.wire.base import Message


class ControlCommand(StrEnum):
    """What can be asked of a live job."""

    GRACEFUL_STOP = "graceful_stop"
    SAVE_CHECKPOINT = "save_checkpoint"
    SAVE_AND_STOP = "save_and_stop"
    ABORT = "abort"
    PAUSE = "pause"
    EVALUATE = "evaluate"
    SET = "set"


class SetData(Message):
    """`data` of a `set`: at least one of these; each survives a resume (`overrides.json`).

    Args:
        learning_rate: New peak rate: the scheduler's base rates are scaled, its shape stays.
        logging_steps: Steps between two points of the series.
        save_steps: Steps between two checkpoints.
        eval_steps: Steps between two evaluations.
        max_steps: Where the training ends; raising it counts from the next resume on, lowering it at once.
    """

    learning_rate: float | None = Field(default=None, gt=0)
    logging_steps: int | None = Field(default=None, ge=1)
    save_steps: int | None = Field(default=None, ge=1)
    eval_steps: int | None = Field(default=None, ge=1)
    max_steps: int | None = Field(default=None, ge=1)


class ControlRequest(Message):
    """Body of `POST /jobs/{job_id}/control`."""

    command: str
    data: dict[str, Any] = Field(default_factory=dict)
    command_id: str | None = None


class ControlReply(Message):
    """A command was taken."""

    status: Literal["acknowledged"] = "acknowledged"
    command: str
    command_id: str
    timestamp: float
    message: str


class CommandState(Message):
    """Body of `GET /jobs/{job_id}/commands/{command_id}`."""

    command_id: str
    command: str
    state: Literal["pending", "applied", "durable", "failed"]
    step: int | None = None
    checkpoint: str | None = None
    message: str | None = None


class Endpoint(Message):
    """`~/.tunefleet/jobs/<job_id>/endpoint.json`, mode 0600.

    `host`, `port`, `pid`, `started_at` and `job_id` are the document's; the others let a client check that the process
    it would send its token to is really the one that wrote the file.
    """

    job_id: str
    host: str
    port: int
    pid: int
    started_at: float
    process_started_at: float | None = None
    boot_id: str | None = None
    hostname: str | None = None
    token: str | None = None
    job_folder: str | None = None
