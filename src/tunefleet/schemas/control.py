"""The control protocol of rank 0, and the files that make a job findable.

Where there is no port (`enable_http=False`, or none could be bound) `endpoint.json` says `"port": 0`, and commands are
files in the endpoint folder:

1. The asker writes `control/<command>_<unix_ms>.json` (`CommandFile`), whole: under a name with a leading dot first,
   then renamed. The file belongs to the user of the training, or to root.
2. The trainer looks four times a second. What it takes gets `control/<same name without .json>.outcome.json`
   (`CommandOutcomeFile`), first with `pending` (taken), then replaced as the command goes on, as on the port. A file
   that is no command, or comes when the training has ended, gets an outcome `failed` with the reason.
3. Both files stay: an outcome can be read after the end, until the folder is cleaned up. A command whose file waited
   before the training's process started has failed.

After the end `status.json` and `commands.json` (`{"commands": [CommandState…]}`) of the endpoint folder, or of the job
folder where there is one, hold the last status and every outcome.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import Field

from tunefleet.schemas.base import Message


class ControlCommand(StrEnum):
    """What can be asked of a live job."""

    GRACEFUL_STOP = "graceful_stop"
    SAVE_CHECKPOINT = "save_checkpoint"
    SAVE_AND_STOP = "save_and_stop"
    ABORT = "abort"
    PAUSE = "pause"
    EVALUATE = "evaluate"
    SET = "set"


# What a training takes.
TRAINING_COMMANDS: Final = frozenset(ControlCommand)
# What a program takes that has no training and goes through items.
BETWEEN_ITEMS: Final = frozenset({ControlCommand.PAUSE, ControlCommand.ABORT, ControlCommand.SAVE_CHECKPOINT})


class SetData(Message):
    """`data` of a `set`: at least one of these; each survives a resume (`overrides.json`).

    Args:
        learning_rate: New peak rate: the scheduler's base rates are scaled, its shape stays.
        logging_steps: Steps between two points of the series.
        save_steps: Steps between two checkpoints.
        eval_steps: Steps between two evaluations.
        max_steps: Where the training ends; raising it counts from the next resume on, lowering it at once.
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


class CommandFile(Message):
    """`control/<command>_<unix_ms>.json`: a command where there is no port.

    Args:
        timestamp: Seconds since the epoch.
        command_id: Without one, the file's name without `.json` is the id.
    """

    command: str
    timestamp: float | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    command_id: str | None = None


class CommandOutcomeFile(CommandState):
    """`control/<name>.outcome.json`: what became of the command file `control/<name>.json`.

    Args:
        at: When this was written; seconds since the epoch.
    """

    command_id: str = ""
    command: str = ""
    at: float


class Endpoint(Message):
    """`~/.tunefleet/jobs/<job_id>/endpoint.json`, mode 0600.

    `host`, `port`, `pid`, `started_at` and `job_id` are the document's; the others let a client check that the process
    it would send its token to is really the one that wrote the file.

    Args:
        port: 0 where commands are files.
        ended_at: When the process ended properly, if the file was left on purpose (`cleanup_on_exit=False`); seconds
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
