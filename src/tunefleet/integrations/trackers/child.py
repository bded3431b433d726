"""`python -m tunefleet.integrations.trackers.child`: sends one run, JSON on standard input, to a tracker.

Standard output is JSON: the location of the run, or the error.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock

from tunefleet.errors import TunefleetError
from tunefleet.integrations.trackers import catalog
from tunefleet.integrations.trackers.contract import TrackedRun
from tunefleet.settings import TrackingSettings, load


def tell(name: str, run: TrackedRun, folder: Path) -> str:
    """Send a run to a tracker, and return its location."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = load(TrackingSettings)
    # If the server is killed, no other process ends this one.
    signal.alarm(math.ceil(settings.timeout_s))
    # Such an orphan may still be running: never run two at the same time.
    with FileLock(folder / f"{name}.lock"):
        opened = catalog.tracker(name, settings).open(run, folder)
        opened.log(run.metrics, run.step)
        return opened.finish(run.summary)


def main() -> int:
    """Send the run from standard input."""
    given: dict[str, Any] = orjson.loads(sys.stdin.buffer.read())
    # Trackers print to standard output, some at exit or from child processes: redirect that to standard error.
    result_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        answer = {"where": tell(given["tracker"], TrackedRun(**given["run"]), Path(given["folder"]))}
    except Exception as error:  # noqa: BLE001 -- any error of the library is reported as the result
        answer = {"error": str(error) if isinstance(error, TunefleetError) else f"{type(error).__name__}: {error}"}
    with os.fdopen(result_fd, "wb") as out:
        out.write(orjson.dumps(answer))
    return int("error" in answer)


if __name__ == "__main__":
    sys.exit(main())
