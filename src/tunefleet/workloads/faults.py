"""Exit codes of a job process, and exceptions that never reach a server as such."""

from __future__ import annotations

from typing import Final, Literal

from tunefleet.errors import InputError, TunefleetError

ErrorKind = Literal["input", "oom", "disk", "network", "diverged", "bug"]
# Exit code of a failure of the program or the machine.
FAILED: Final = 1
# Exit code of an error in the user's input.
INPUT_FAILED: Final = 2


class DivergedError(TunefleetError):
    """The training loss is NaN or infinite, or has risen and stays high."""

    code = "diverged"


class CommandFailedError(Exception):
    """A process started by the job failed."""

    def __init__(self, message: str, kind: ErrorKind = "bug", traceback: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.traceback = traceback


class RequestError(InputError):
    """One request cannot be answered; the other requests are not affected."""

    code = "request_invalid"

    def __init__(self, message: str, *, key: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class ClientGoneError(Exception):
    """The client has disconnected; this is not an error."""
