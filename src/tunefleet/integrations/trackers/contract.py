"""The data of a tracked run, and the interface of trackers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tunefleet.errors import TunefleetError

# Value types of configurations and summaries that every tracker accepts.
Plain = str | int | float | bool


class NotTracked(TunefleetError):
    """A tracker did not accept a run; retrying may help."""

    code = "not_tracked"


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run to store in a tracker."""

    id: str
    name: str
    project: str
    group: str
    at: float
    step: int
    config: Mapping[str, Plain]
    metrics: Mapping[str, float]
    summary: Mapping[str, Plain]


class OpenRun(Protocol):
    """An open run: new, or found again after a crash."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a row of metrics; an existing row of the same step is kept."""

    def finish(self, summary: Mapping[str, Plain]) -> str:
        """Finish the run once everything was accepted, and return its URL or path.

        Raises:
            NotTracked: If it was not accepted.
        """


class Tracker(Protocol):
    """A tracker; created in the child process. It may block, and raise any exception."""

    variables: tuple[str, ...]
    """Prefixes of the environment variables that it needs, in addition to those without credentials."""

    def fault(self) -> str | None:
        """Return what is missing in its settings, with the fix; `None` if it is usable. Makes no requests."""

    def open(self, run: TrackedRun, folder: Path) -> OpenRun:
        """Open the run with this id, or create it with its configuration."""
