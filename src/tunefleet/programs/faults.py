"""Faults of what runs itself: they end a job and never reach a server as an exception."""

from __future__ import annotations

from typing import Literal

from tunefleet.errors import TunefleetError

ErrorKind = Literal["input", "oom", "disk", "network", "diverged", "bug"]


class DivergedError(TunefleetError):
    """The loss of a training is no number, or climbs and stays high."""

    code = "diverged"


class CommandFailedError(Exception):
    """A process that the job has started has failed.

    Args:
        message: One sentence for the user.
        kind: Which kind of failure it was; see `wire.jobfolder.JobStatus.error_kind`.
        traceback: The last one of that process, if it said one.
    """

    def __init__(self, message: str, kind: ErrorKind = "bug", traceback: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.traceback = traceback
