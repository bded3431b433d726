"""Trackio: one run per cycle, on this machine, on a server or in a Space, as its own variables configure."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunefleet.integrations.trackers.contract import NotTracked, OpenRun, Plain, TrackedRun
from tunefleet.settings import TrackingSettings


class _Run:
    """A run that is sent to Trackio at its end: Trackio stores the configuration with the first row."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._rows: list[tuple[dict[str, float], int]] = []

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._rows.append((dict(metrics), step))

    def finish(self, summary: Mapping[str, Plain]) -> str:
        with warnings.catch_warnings(record=True) as caught:
            # Trackio raises no errors, and only warns about data that it could not store or send.
            warnings.simplefilter("always")
            where = self._send(summary)
        faults = [str(each.message) for each in caught if "trackio" in str(each.message).lower()]
        if faults:
            raise NotTracked(f"Trackio did not accept the run: {faults[0]}")
        return where

    def _send(self, summary: Mapping[str, Plain]) -> str:
        import trackio  # noqa: PLC0415 -- takes seconds, and only the child needs it

        run = self._run
        config = {**run.config, **summary}
        given: dict[str, Any] = {"name": run.name, "group": run.group, "config": config, "embed": False}
        try:
            opened: Any = trackio.init(run.project, resume="must", auto_log_cpu=False, auto_log_gpu=False, **given)
        except ValueError as error:
            if "does not exist" not in str(error):
                raise
            opened = trackio.init(run.project, resume="never", auto_log_cpu=False, auto_log_gpu=False, **given)
            for metrics, step in self._rows:
                opened.log(metrics, step=step)
        # An existing run has its row already: they were stored together.
        opened.finish()
        return f"{run.name} in {run.project}"


class TrackioTracker:
    """Sends runs to Trackio."""

    variables = ("TRACKIO_", "HF_TOKEN", "HF_HOME", "HF_ENDPOINT")

    def fault(self) -> str | None:
        """Return `None`: without configuration it stores runs on this machine."""
        return None

    def open(self, run: TrackedRun, folder: Path) -> OpenRun:
        """Return the run; whether it exists is checked at its end."""
        del folder  # Trackio has its own folder, which its dashboard reads
        return _Run(run)


def make(settings: TrackingSettings) -> TrackioTracker:
    """Return the tracker; see `catalog.MakeTracker`."""
    del settings  # Trackio reads its own variables
    return TrackioTracker()
