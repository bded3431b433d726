"""One program in several processes: who leads, who goes first, and that none outlives the launcher.

Asks the environment that torchrun gives each rank, so that nothing has to be imported for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.diagnostics import RANKS
from tunefleet.trainer_control.distributed import world

LAUNCHER = "TUNEFLEET_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.05


def leads() -> bool:
    """Tell whether this process writes results; exactly one of a job does."""
    return world.rank() == 0


def count() -> int:
    """Return how many processes train together."""
    return world.size()


def die_with_launcher() -> None:
    """Have the kernel end this rank when its launcher ends, however that ends; does nothing outside of a launcher.

    Only Linux can do that. Elsewhere a rank notices when it next talks to the others.
    """
    launcher = os.environ.get(LAUNCHER, "")
    if not launcher.isdecimal() or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):
        os.kill(os.getpid(), signal.SIGKILL)  # it ended before the kernel was told


def use_own_device() -> None:
    """Give this rank the GPU of its number, before anything opens one: else all would open the first."""
    if count() == 1:
        return
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def leader_first(folder: JobFolder, launch: str, part: str) -> Iterator[None]:
    """Let the first rank of the job folder do what is inside, and the others after it: they find what it has left.

    A rank waits as long as it takes: if rank 0 fails, the launcher ends them all.
    """
    if count() == 1:
        yield
        return
    mark = folder.root / RANKS / f"{launch}.{part}"
    first = world.leads_folder()
    if not first:
        while not mark.exists():
            time.sleep(_LOOK_S)
    yield
    if first:
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
