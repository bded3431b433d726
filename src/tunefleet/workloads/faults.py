"""What ends a job: its exit codes, and faults that never reach a server as an exception."""

from __future__ import annotations

from typing import Final, Literal

from tunefleet.errors import InputError, TunefleetError

ErrorKind = Literal["input", "oom", "disk", "network", "diverged", "bug"]
FAILED: Final = 1
INPUT_FAILED: Final = 2
"""Exit codes of a job's process: of a fault of ours or of the machine, and of a mistake of the user."""


class DivergedError(TunefleetError):
    """The loss of a training is no number, or climbs and stays high."""

    code = "diverged"


class CommandFailedError(Exception):
    """A process that the job has started has failed."""

    def __init__(self, message: str, kind: ErrorKind = "bug", traceback: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.traceback = traceback


class RequestError(InputError):
    """A request cannot be answered; the others can."""

    code = "request_invalid"

    def __init__(self, message: str, *, key: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class GoneError(Exception):
    """Whoever asked does not listen any more; nothing is wrong."""
