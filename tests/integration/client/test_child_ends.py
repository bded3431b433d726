"""What `tunefleet up` reports about a child process that ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tunefleet.cli.local_cluster.process import Child

REGISTERED = "2026-01-01 00:00:00 INFO tunefleet.worker.worker: Registered as box-1."


class Script(Child):
    """A child that runs a line of Python instead of a module."""

    def __init__(self, folder: Path, code: str) -> None:
        super().__init__("worker", "none", [], environment=os.environ, log=folder / "worker.log")
        self._command = [sys.executable, "-c", code]
        self.label = "Worker box-1"

    def ended(self) -> str:
        self.start()
        assert self._process is not None
        self._process.wait(60)
        return self.describe_end()


def test_a_child_that_was_killed_is_told_by_the_signal_and_not_by_its_last_line(tmp_path: Path) -> None:
    code = f"import os; print({REGISTERED!r}, flush=True); os.kill(os.getpid(), {int(signal.SIGKILL)})"
    assert Script(tmp_path, code).ended() == "Worker box-1 was killed (signal 9)"


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (REGISTERED, "Worker box-1 ended with status 3"),
        (
            f"{REGISTERED}\n2026-01-01 00:00:01 ERROR tunefleet.worker: The disk is full.\n{REGISTERED}",
            "Worker box-1 ended with status 3: 2026-01-01 00:00:01 ERROR tunefleet.worker: The disk is full",
        ),
        ("error: The key is not good.", "Worker box-1 ended with status 3: The key is not good"),
    ],
    ids=["nothing", "record", "sentence"],
)
def test_a_child_that_ended_by_itself_is_told_by_its_last_error(tmp_path: Path, last: str, told: str) -> None:
    assert Script(tmp_path, f"print({last!r}, flush=True); raise SystemExit(3)").ended() == told
