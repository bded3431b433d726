"""Locks that live as long as any process that inherited them, and the ledger of GPUs that is made of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tunefleet.errors import MachineError
from tunefleet.runtime import locks
from tunefleet.runtime.gpu import gpu_locks


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not locks.is_held(path)
    fd = locks.take(path)
    assert fd is not None
    assert locks.is_held(path)
    assert locks.take(path, patience_s=0.03) is None
    os.close(fd)
    assert not locks.is_held(path)


def test_a_file_that_was_deleted_meanwhile_is_not_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "lock", os.open
    seen: list[int] = []

    def open_and_lose(*args: object, **kwargs: object) -> int:
        fd = real(*args, **kwargs)  # type: ignore[arg-type]
        if not seen:
            path.unlink()
        seen.append(fd)
        return fd

    monkeypatch.setattr(locks.os, "open", open_and_lose)
    fd = locks.take(path)
    assert fd is not None
    assert len(seen) == 2
    assert os.path.samestat(os.fstat(fd), path.stat())
    os.close(fd)


def test_gpus_are_claimed_all_or_none(tmp_path: Path) -> None:
    first = gpu_locks.claim(tmp_path, ["GPU-b"], "task-1")
    assert gpu_locks.holder(tmp_path, "GPU-b") == f"job task-1 (pid {os.getpid()})"
    with pytest.raises(MachineError, match=r"GPU GPU-b is in use by job task-1 \(pid \d+\)"):
        gpu_locks.claim(tmp_path, ["GPU-a", "GPU-b"], "task-2")
    assert gpu_locks.holder(tmp_path, "GPU-a") is None
    for fd in first:
        os.close(fd)
    assert gpu_locks.holder(tmp_path, "GPU-b") is None
    for fd in gpu_locks.claim(tmp_path, ["GPU-b", "GPU-a"], "task-2"):
        os.close(fd)


def test_no_gpu_needs_no_ledger_and_no_name_leaves_it(tmp_path: Path) -> None:
    assert gpu_locks.claim(tmp_path / "ledger", [], "task-1") == []
    assert not (tmp_path / "ledger").exists()
    (fd,) = gpu_locks.claim(tmp_path / "ledger", ["../../x"], "task-1")
    os.close(fd)
    assert [file.name for file in (tmp_path / "ledger").iterdir()] == [".._.._x.lock"]
