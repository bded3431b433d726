"""Another person's process uses a GPU, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.runtime.test_yielding import GIB, gpu
from tunefleet.runtime.gpu import gpu_locks
from tunefleet.runtime.gpu.info import GpuProcess
from tunefleet.runtime.monitor.preemption import GpuContentionMonitor, others_on


@pytest.fixture
def somebody() -> Iterator[int]:
    """A real process that is none of ours: it has inherited no lock."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.communicate()


def test_a_process_of_somebody_else_is_named_and_that_of_a_job_is_not(tmp_path: Path, somebody: int) -> None:
    assert others_on(gpu(GpuProcess(somebody, GIB)), tmp_path) is not None
    fds = gpu_locks.claim(tmp_path, ["GPU-a"], "task-1")
    # The child's parent, this process, holds the lock: the whole family is the job's.
    assert others_on(gpu(GpuProcess(os.getpid(), GIB), GpuProcess(somebody, GIB)), tmp_path) is None
    assert others_on(gpu(GpuProcess(somebody, GIB), uuid="GPU-b"), tmp_path) is not None, "it claimed another GPU"
    for fd in fds:
        os.close(fd)
    assert f"pid {somebody}" in str(others_on(gpu(GpuProcess(somebody, GIB)), tmp_path))


@pytest.mark.parametrize(
    ("memory", "kind", "counts"),
    [(300 << 20, "graphics", False), (None, "graphics", False), (3 * GIB, "graphics", True), (1, "compute", True)],
)
def test_a_desktop_is_nobody_and_a_game_is(
    tmp_path: Path, somebody: int, memory: int | None, kind: str, counts: bool
) -> None:
    process = GpuProcess(somebody, memory, kind)  # type: ignore[arg-type]
    assert (others_on(gpu(process), tmp_path) is not None) is counts


def test_a_glance_does_not_drive_a_job_away_but_bars_the_gpu_until_it_was_quiet(tmp_path: Path, somebody: int) -> None:
    now, there = 100.0, [gpu(), gpu(uuid="GPU-b")]
    gpu_monitor = GpuContentionMonitor(tmp_path, idle_s=30, read=lambda: there, clock=lambda: now)
    told: list[int] = []
    gpu_monitor._on_change = lambda: told.append(len(gpu_monitor.in_use()))
    gpu_monitor.look()
    assert (gpu_monitor.in_use(), gpu_monitor.all_in_use(), gpu_monitor.unused(["GPU-a"])) == (
        {},
        False,
        True,
    )
    there[0] = gpu(GpuProcess(somebody, GIB))
    gpu_monitor.look()
    assert gpu_monitor.other_user(["GPU-a"]) is None
    assert list(gpu_monitor.in_use()) == ["GPU-a"]
    assert (gpu_monitor.unused(["GPU-b"]), gpu_monitor.all_in_use()) == (True, False)
    now += 2
    gpu_monitor.look()
    assert f"pid {somebody}" in str(gpu_monitor.other_user(["GPU-b", "GPU-a"]))
    there[0] = gpu()
    now += 29
    gpu_monitor.look()
    assert gpu_monitor.other_user(["GPU-a"]) is None
    assert not gpu_monitor.unused(["GPU-a"])
    now += 2
    gpu_monitor.look()
    assert gpu_monitor.unused(["GPU-a"])
    assert told == [1, 0], "also what changes by time alone is told"


def test_a_gpu_that_the_driver_does_not_name_for_a_moment_is_remembered(tmp_path: Path, somebody: int) -> None:
    now, there = 0.0, [gpu(GpuProcess(somebody, GIB))]
    gpu_monitor = GpuContentionMonitor(tmp_path, idle_s=5, read=lambda: there, clock=lambda: now)
    gpu_monitor.look()
    there.clear()
    now += 100
    gpu_monitor.look()
    assert gpu_monitor.all_in_use()
