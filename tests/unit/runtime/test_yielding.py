"""Who else uses a GPU, what counts as somebody, and when it is quiet again."""

from __future__ import annotations

import os
from pathlib import Path

from tunefleet.runtime.gpu import gpu_locks
from tunefleet.runtime.gpu.info import GpuFigures, GpuProcess
from tunefleet.runtime.monitor.preemption import others_on

GIB = 1 << 30


def gpu(*processes: GpuProcess, uuid: str = "GPU-a") -> GpuFigures:
    return GpuFigures(0, uuid, "Fake RTX", 2 * GIB, 8 * GIB, processes=processes)


def test_where_no_process_is_named_memory_in_use_says_it(tmp_path: Path) -> None:
    dumb = GpuFigures(0, "GPU-a", "Fake RTX", 3 * GIB, 8 * GIB, processes=None)
    assert "3.0 GiB" in str(others_on(dumb, tmp_path))
    assert others_on(GpuFigures(0, "GPU-a", "Fake RTX", GIB // 2, 8 * GIB), tmp_path) is None
    (fd,) = gpu_locks.claim(tmp_path, ["GPU-a"], "task-1")
    assert others_on(dumb, tmp_path) is None, "our own job fills it"
    os.close(fd)


def test_a_number_that_this_machine_does_not_know_is_not_counted(tmp_path: Path) -> None:
    assert others_on(gpu(GpuProcess(1 << 22, GIB)), tmp_path) is None
