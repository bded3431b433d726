"""A worker for one task ends on a signal of the cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tunefleet.cli.exit_codes import ExitCode
from tunefleet.integrations.clusters import slurm

TUNEFLEET = str(Path(sys.executable).with_name("tunefleet"))


@contextmanager
def started(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start it against a server that is not there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        variables = {
            **os.environ, "TUNEFLEET_HOME": str(folder / "home"), "TUNEFLEET_NODES_DIR": str(folder / "nodes"),
            "TUNEFLEET_WORKER_KEY": "a-key", "TUNEFLEET_NODES_JOB": "job", "TUNEFLEET_NODES_PATIENCE_S": "60",
        }  # fmt: skip
        process = subprocess.Popen(
            [TUNEFLEET, "worker", "--once", "task_a", "--server", url],
            env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_of_the_cluster_ends_it_with_the_code_that_means_later(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "keeps trying" in line:
                break
        process.send_signal(number)
        assert process.wait(20.0) == ExitCode.MADE_WAY == slurm.MADE_WAY
    assert list((tmp_path / "nodes").iterdir()) == []
