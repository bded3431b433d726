"""Ranks of a program: which one leads, which one goes first, and that none outlives the launcher.

Reads the environment variables that torchrun sets for each rank, so that torch need not be imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.diagnostics import RANKS
from tunefleet.trainer_control.distributed import world

LAUNCHER = "TUNEFLEET_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.05


def leads() -> bool:
    """Return whether this process writes the results; exactly one rank of a job does."""
    return world.rank() == 0


def count() -> int:
    """Return the number of ranks."""
    return world.size()


def die_with_launcher() -> None:
    """Let the kernel kill this rank when its launcher ends in any way; does nothing without a launcher.

    Linux only. On other systems a rank notices at its next collective operation.
    """
    launcher = os.environ.get(LAUNCHER, "")
    if not launcher.isdecimal() or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):
        # The launcher ended before `prctl`: no signal would ever come.
        os.kill(os.getpid(), signal.SIGKILL)


def use_own_device() -> None:
    """Select the GPU of this rank; must run before any CUDA context is created."""
    # Otherwise every rank would create a context on the first GPU.
    if count() == 1:
        return
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def leader_first(folder: JobFolder, launch: str, part: str) -> Iterator[None]:
    """Run the `with` block on the first rank of the job folder before the other ranks, which find its files."""
    if count() == 1:
        yield
        return
    mark = folder.root / RANKS / f"{launch}.{part}"
    first = world.leads_folder()
    if not first:
        # Without a timeout: downloads may take hours, and if the first rank fails, the launcher ends the others.
        while not mark.exists():
            time.sleep(_LOOK_S)
    yield
    if first:
        mark.parent.mkdir(exist_ok=True)
        mark.touch()


def allow_sharding_on_cpu() -> None:
    """Let the next `Accelerator` use FSDP on CPUs; called once the process group exists."""
    # Not at the head: torchrun's own process, which imports this module, trains nothing.
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    # Accelerate considers FSDP only for device types with accelerators, and replaces the type once it has chosen FSDP.
    state: dict[str, Any] = PartialState._shared_state
    if state.get("distributed_type") == DistributedType.MULTI_CPU:
        state["distributed_type"] = DistributedType.MULTI_XPU
