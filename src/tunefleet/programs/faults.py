"""Faults of a training itself: they end a job and never reach a server as an exception."""

from __future__ import annotations

from tunefleet.errors import TunefleetError


class DivergedError(TunefleetError):
    """The loss of a training is no number, or climbs and stays high."""

    code = "diverged"
