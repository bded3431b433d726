"""GPU ledger: one lock file per UUID, so that two supervisors on a machine cannot share a device.

The processes of a job hold the locks, not the supervisor: a GPU is free once all processes of the job are gone, however
they ended. Each user has a ledger in their home folder; a job of another user is detected as a third-party process
(`monitor.preemption`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tunefleet.errors import MachineError
from tunefleet.runtime import locks

_PATIENCE_S = 1.0


class GpuBusyError(MachineError):
    """A requested GPU is in use; a retry may succeed."""


def ledger_dir(endpoints_dir: Path) -> Path:
    """Return the folder of a user's GPU locks, which is next to the endpoint folder."""
    return endpoints_dir.parent / "gpus"


def claim(folder: Path, uuids: Sequence[str], owner: str) -> list[int]:
    """Claim GPUs for this process and its children, all of them or none.

    Returns:
        The locked descriptors; the claim lasts until all copies of them are closed.

    Raises:
        GpuBusyError: If one is in use; the message names it and its holder.
    """
    held: list[int] = []
    if uuids:
        folder.mkdir(parents=True, exist_ok=True)
    # Always in the same order, so that two processes that claim the same pair do not get one GPU each.
    for uuid in sorted(set(uuids)):
        fd = locks.take(_file(folder, uuid), patience_s=_PATIENCE_S)
        if fd is None:
            for other in held:
                os.close(other)
            raise GpuBusyError(
                f"GPU {uuid} is in use by {holder(folder, uuid) or 'another process'}.",
                hint="Wait until it ends, or set CUDA_VISIBLE_DEVICES of the worker to another device.",
            )
        # For messages only: once the lock is released, the text means nothing.
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"job {owner} (pid {os.getpid()})".encode(), 0)
        held.append(fd)
    return held


def holder(folder: Path, uuid: str) -> str | None:
    """Return the holder of a GPU, or None if it is free."""
    file = _file(folder, uuid)
    return (file.read_text(encoding="utf-8") or "another process") if locks.is_held(file) else None


def lock_file(folder: Path, uuid: str) -> Path:
    """Return the lock file of a GPU."""
    return _file(folder, uuid)


def _file(folder: Path, uuid: str) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', uuid)}.lock"
