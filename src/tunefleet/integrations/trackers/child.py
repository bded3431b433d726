"""`python -m tunefleet.integrations.trackers.child`: tells one tracker of one run, which is JSON on standard input.

Standard output is JSON: where the run is, or why the tracker has not taken it.
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
    """Tell a tracker of a run, and return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = load(TrackingSettings)
    # Whose server was killed is ended by nobody else.
    signal.alarm(math.ceil(settings.timeout_s))
    # Such a one may still be at it: never two at once.
    with FileLock(folder / f"{name}.lock"):
        opened = catalog.tracker(name, settings).open(run, folder)
        opened.log(run.metrics, run.step)
        return opened.finish(run.summary)


def main() -> int:
    """Do what standard input says."""
    given: dict[str, Any] = orjson.loads(sys.stdin.buffer.read())
    # Trackers print, some of them at exit, or from processes of theirs: that is for whoever looks for a fault.
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        answer = {"where": tell(given["tracker"], TrackedRun(**given["run"]), Path(given["folder"]))}
    except Exception as error:  # noqa: BLE001 -- whatever a library raises is its answer
        answer = {"error": str(error) if isinstance(error, TunefleetError) else f"{type(error).__name__}: {error}"}
    with os.fdopen(answers, "wb") as said:
        said.write(orjson.dumps(answer))
    return int("error" in answer)


if __name__ == "__main__":
    sys.exit(main())
