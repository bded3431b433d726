"""The ledger of GPUs: one locked file per UUID, so that two supervisors on a machine cannot share a device.

The processes of a job hold the locks, not the supervisor: a GPU is free when nothing of the job lives any more, however
it ended; what a holder wrote into the file says nothing once nobody holds it. Each user of a machine has a ledger of
their own in their home folder; the job of another user is seen as what it is here, a process of somebody else
(`yielding`).
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
    """A GPU that is wanted is in use; it will be free again."""


def ledger_dir(endpoints_dir: Path) -> Path:
    """Return where a user's GPU locks lie, given where his live jobs are found."""
    return endpoints_dir.parent / "gpus"


def claim(folder: Path, uuids: Sequence[str], owner: str) -> list[int]:
    """Claim GPUs for this process and its children; all of them or none.

    Raises:
        GpuBusyError: If one is taken; the message names it and its holder.
    """
    held: list[int] = []
    if uuids:
        folder.mkdir(parents=True, exist_ok=True)
    # In one order for everybody, so that two who want the same pair do not both end with one.
    for uuid in sorted(set(uuids)):
        fd = locks.take(_file(folder, uuid), patience_s=_PATIENCE_S)
        if fd is None:
            for other in held:
                os.close(other)
            raise GpuBusyError(
                f"GPU {uuid} is in use by {holder(folder, uuid) or 'another process'}.",
                hint="Wait until it ends, or give the worker another device by CUDA_VISIBLE_DEVICES.",
            )
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"job {owner} (pid {os.getpid()})".encode(), 0)
        held.append(fd)
    return held


def holder(folder: Path, uuid: str) -> str | None:
    """Return who holds a GPU, or None if nobody does."""
    file = _file(folder, uuid)
    return (file.read_text(encoding="utf-8") or "another process") if locks.is_held(file) else None


def lock_file(folder: Path, uuid: str) -> Path:
    """Return the file whose lock claims a GPU."""
    return _file(folder, uuid)


def _file(folder: Path, uuid: str) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', uuid)}.lock"
