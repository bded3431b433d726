"""The control protocol of rank 0, and the files for discovering a job.

Without a port (`enable_http=False`, or none could be bound) `endpoint.json` has `"port": 0`, and commands are files in
the endpoint folder:

1. The client writes `control/<command>_<unix_ms>.json` (`CommandFile`) atomically: under a name with a leading dot
   first, then renamed. The file must belong to the user of the training process, or to root.
2. The trainer checks four times a second. For each command it writes `control/<same name without .json>.outcome.json`
   (`CommandOutcomeFile`), first with `pending`, then updated as the command proceeds, as on the port. A file that is
   not a command, or arrives after the training has ended, gets an outcome `failed` with the reason.
3. Both files are kept: an outcome can be read after the end, until the folder is cleaned up. A command whose file
   existed before the training process started fails.

After the end `status.json` and `commands.json` (`{"commands": [CommandState…]}`) of the endpoint folder, or of the job
folder where there is one, hold the last status and every outcome.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import Field

from tunefleet.schemas.base import Message


class ControlCommand(StrEnum):
    """Commands to a running job."""

    GRACEFUL_STOP = "graceful_stop"
    SAVE_CHECKPOINT = "save_checkpoint"
    SAVE_AND_STOP = "save_and_stop"
    ABORT = "abort"
    PAUSE = "pause"
    EVALUATE = "evaluate"
    SET = "set"


# Commands that training jobs support.
TRAINING_COMMANDS: Final = frozenset(ControlCommand)
# Commands of jobs that process items instead of training.
BETWEEN_ITEMS: Final = frozenset({ControlCommand.PAUSE, ControlCommand.ABORT, ControlCommand.SAVE_CHECKPOINT})


class SetData(Message):
    """`data` of a `set`: at least one field; values persist across resumes (`overrides.json`).

    Args:
        learning_rate: New peak learning rate; the schedule is scaled and keeps its shape.
        logging_steps: Steps between metric points.
        save_steps: Steps between checkpoints.
        eval_steps: Steps between evaluations.
        max_steps: Last step; a higher value takes effect at the next resume, a lower one immediately.
    """

    learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    logging_steps: int | None = Field(default=None, ge=1, le=2**53)
    save_steps: int | None = Field(default=None, ge=1, le=2**53)
    eval_steps: int | None = Field(default=None, ge=1, le=2**53)
    max_steps: int | None = Field(default=None, ge=1, le=2**53)


class ControlRequest(Message):
    """Body of `POST /jobs/{job_id}/control`."""

    command: str
    data: dict[str, Any] = Field(default_factory=dict)
    command_id: str | None = None


class ControlReply(Message):
    """A command was accepted."""

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


class CommandFile(Message):
    """`control/<command>_<unix_ms>.json`: a command without a port.

    Args:
        timestamp: Seconds since the epoch.
        command_id: Default: the file name without `.json`.
    """

    command: str
    timestamp: float | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    command_id: str | None = None


class CommandOutcomeFile(CommandState):
    """`control/<name>.outcome.json`: outcome of the command file `control/<name>.json`.

    Args:
        at: Time of writing; seconds since the epoch.
    """

    command_id: str = ""
    command: str = ""
    at: float


class Endpoint(Message):
    """`~/.tunefleet/jobs/<job_id>/endpoint.json`, mode 0600.

    With the additional fields a client verifies that the process to which it would send its token is the one that wrote
    the file.

    Args:
        port: 0 if commands are files.
        ended_at: Time of a regular exit, if the file was kept deliberately (`cleanup_on_exit=False`); seconds
            since the epoch.
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
    ended_at: float | None = None
