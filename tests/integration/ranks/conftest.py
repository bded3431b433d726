"""Jobs of several processes, started as a worker starts them: supervisor, keeper, torchrun, ranks."""

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
from tunefleet.schemas.job_folder import Job
from tunefleet.settings import inherited_environment
from tunefleet.trainer_control import process_identity

PROGRAM_DIR = Path(__file__).parent / "program"


def job(
    program: str, *, processes: int = 2, job_id: str = "task-1", attempt: int = 1, step: int | None = None, **spec: Any
) -> Job:
    return Job(
        job_id=job_id,
        task_id=job_id,
        attempt=attempt,
        launch=new_launch_id(),
        kind="ranks",
        name="ranks",
        program=program,
        spec=spec,
        processes=processes,
        from_step=step,
    )


def until(condition: Callable[[], Any], timeout_s: float = 240.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def ranks_of(handle: JobHandle) -> list[int]:
    """Wait for the ranks of a `plain_rank` job and return their pids."""
    files = [handle.folder.root / f"pid-{rank}" for rank in range(handle.job.processes)]
    until(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def lives(pid: int) -> bool:
    return process_identity.process_started_at(pid) is not None


def end(handle: JobHandle, timeout_s: float = 90.0) -> Any:
    """Wait for the end of a job; what it logged is part of a failure's report."""
    ended = handle.wait(timeout_s)
    print(handle.folder.log.read_text())
    assert ended is not None, "the job did not end"
    return ended


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    environment = {**inherited_environment(), "PYTHONPATH": str(PROGRAM_DIR), "CUDA_VISIBLE_DEVICES": ""}
    supervisor = Supervisor(
        tmp_path / "results", endpoints_dir=tmp_path / "home" / "jobs", warm=False, base_env=environment
    )
    yield supervisor
    supervisor.close()
    for lock in supervisor.results_dir.glob("*/lock"):
        for pid in locks.holders(lock):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
