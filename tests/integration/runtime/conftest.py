"""Real job processes that run a fake trainer program."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunefleet.runtime import JobHandle, Supervisor, locks, new_launch_id
from tunefleet.schemas.job_folder import Job, JobProcess
from tunefleet.settings import inherited_environment

PROGRAM_DIR = Path(__file__).parent / "program"
Launch = Callable[..., JobHandle]


def environment(tmp_path: Path) -> dict[str, str]:
    """A jobs' environment of this test alone, in which the fake trainer can be imported."""
    return {**inherited_environment(), "PYTHONPATH": str(PROGRAM_DIR), "TEST_FOLDER": str(tmp_path)}


def make_job(do: str, *, job_id: str = "task-1", attempt: int = 1, gpus: tuple[str, ...] = (), **options: Any) -> Job:
    return Job(
        job_id=job_id,
        task_id=job_id,
        attempt=attempt,
        launch=new_launch_id(),
        kind="fake",
        name="fake",
        program="fake_trainer:main",
        spec={"do": do, **options},
        gpus=gpus,
    )


def process_of(handle: JobHandle) -> JobProcess:
    return JobProcess.model_validate_json(handle.folder.process_json.read_bytes())


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def training(handle: JobHandle) -> bool:
    """Whether the job takes steps, and so has its control port open."""
    status = handle.status()
    return status is not None and status.state == "running"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor that starts its jobs cold; what still lives at the end is killed."""
    supervisor = Supervisor(
        tmp_path / "results", endpoints_dir=tmp_path / "home" / "jobs", warm=False, base_env=environment(tmp_path)
    )
    yield supervisor
    supervisor.close()
    for lock in supervisor.results_dir.glob("*/lock"):
        for pid in locks.holders(lock):
            kill(pid)


@pytest.fixture
def launch(supervisor: Supervisor) -> Launch:
    return lambda do, **options: supervisor.launch(make_job(do, **options))
