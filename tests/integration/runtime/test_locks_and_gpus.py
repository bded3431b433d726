"""Locks and GPUs that other processes hold."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunefleet.runtime import locks
from tunefleet.runtime.gpu import gpu_locks as gpus


@contextmanager
def sleeper(*fds: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has inherited descriptors and does nothing."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, pass_fds=fds)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdin:
            process.stdin.close()


def wait_until_free(path: Path) -> None:
    deadline = time.monotonic() + 60
    while locks.is_held(path):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_holds_what_it_inherited_however_its_parent_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fd = locks.take(path)
    assert fd is not None
    with sleeper(fd) as child:
        os.close(fd)
        assert locks.is_held(path)
        assert locks.holders(path) == [child.pid]
    wait_until_free(path)
    assert locks.holders(path) == []


def test_whoever_only_looks_is_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    fd = os.open(path, os.O_RDWR)
    with sleeper(fd):
        assert locks.holders(path) == []
    os.close(fd)
    assert locks.holders(tmp_path / "none") == []


def test_a_gpu_is_free_only_when_nothing_of_the_job_lives(tmp_path: Path) -> None:
    (fd,) = gpus.claim(tmp_path, ["GPU-a"], "task-1")
    with sleeper(fd):
        os.close(fd)
        assert gpus.holder(tmp_path, "GPU-a") is not None
    wait_until_free(tmp_path / "GPU-a.lock")


RIVAL = """
import os, sys, time
from pathlib import Path
from tunefleet.runtime.gpu import gpu_locks as gpus
ledger, mark, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
won = 0
for turn in range(40):
    try:
        fds = gpus.claim(ledger, ["GPU-b", "GPU-a"] if turn % 2 else ["GPU-a", "GPU-b"], name)
    except gpus.GpuBusyError:
        continue
    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))  # fails if another process is in here
    mark.unlink()
    won += 1
    for fd in fds:
        os.close(fd)
print(won)
"""


def test_processes_that_contend_for_two_gpus_never_hold_them_together_nor_block_each_other(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RIVAL, str(tmp_path / "ledger"), str(tmp_path / "mark")]
    rivals = [
        subprocess.Popen([*command, f"job-{n}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    said = [rival.communicate(timeout=60) for rival in rivals]
    assert [(rival.returncode, err) for rival, (_, err) in zip(rivals, said, strict=True)] == [(0, "")] * 3
    assert all(int(out) > 0 for out, _ in said)
    assert gpus.holder(tmp_path / "ledger", "GPU-a") is None, "what the last one wrote there says nothing"
