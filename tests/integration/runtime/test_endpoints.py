"""An endpoint is valid for as long as its process lives."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.runtime.test_endpoints import change
from tunefleet.runtime.control import JobController
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.control.discovery import EndpointFolder


@pytest.fixture
def published(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    EndpointFolder(tmp_path / "jobs", "task-1", tmp_path / "results").publish(host="localhost", port=1, token="secret")
    return tmp_path / "jobs"


def test_a_zombie_is_no_process() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    deadline = time.monotonic() + 5
    while process_identity.process_started_at(process.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process_identity.process_started_at(process.pid) is None
    process.wait()


def test_the_end_of_a_job_is_the_end_of_its_process(published: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        change(published, pid=process.pid, process_started_at=process_identity.process_started_at(process.pid))
        steering = JobController.here(published, "task-1")
        assert not steering.await_end(0.1)
        process.communicate(b"\n")
        assert steering.await_end(10.0)
