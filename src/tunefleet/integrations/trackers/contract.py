"""What a tracker is told of a run, and what it has to do with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tunefleet.errors import TunefleetError

# What configurations and summaries are made of; every tracker takes it.
Plain = str | int | float | bool


class NotTracked(TunefleetError):
    """A tracker has not taken a run; it may at another time."""

    code = "not_tracked"


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run as a tracker keeps it."""

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
    """A run that was opened: new, or found again after a kill."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a row of metrics; a row of that step that is there already stays the only one."""

    def finish(self, summary: Mapping[str, Plain]) -> str:
        """End the run once all of it was taken, and say where it is: a URL or a path.

        Raises:
            NotTracked: If it was not taken.
        """


class Tracker(Protocol):
    """Who keeps runs. One is made in each child; it may block, and raise what it likes."""

    variables: tuple[str, ...]
    """Beginnings of the names of the variables that it reads: the child is given these beside the plain ones."""

    def fault(self) -> str | None:
        """Say what its settings lack, with the way out; null if it can be used. Calls nobody."""

    def open(self, run: TrackedRun, folder: Path) -> OpenRun:
        """Open a run: the one of that id if there is one, else a new one with its configuration."""
