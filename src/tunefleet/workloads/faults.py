"""Errors that end a job, and its exit codes."""

from __future__ import annotations

from typing import Final, Literal

from tunefleet.errors import InputError, TunefleetError

ErrorKind = Literal["input", "oom", "disk", "network", "diverged", "bug"]
FAILED: Final = 1
INPUT_FAILED: Final = 2
"""Exit codes of a job's process: for a failure of the program or the machine, and for an invalid input."""


class DivergedError(TunefleetError):
    """The loss of a training is not a number, or rises and stays high."""

    code = "diverged"


class CommandFailedError(Exception):
    """A process that the job started has failed."""

    def __init__(self, message: str, kind: ErrorKind = "bug", traceback: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.traceback = traceback


class RequestError(InputError):
    """A single request cannot be answered; others are not affected."""

    code = "request_invalid"

    def __init__(self, message: str, *, key: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class GoneError(Exception):
    """The client does not listen any more; not a failure."""
