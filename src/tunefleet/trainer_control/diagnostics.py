"""How a process ends that is not ours: with an exception that nobody caught, or just so.

`sys.excepthook` is called for what reaches the top of the script, also under torchrun's `@record`; what the script
catches never comes there. At the exit of the interpreter everybody who watches is told.
"""

from __future__ import annotations

import atexit
import errno
import faulthandler
import logging
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

from .files import write_json


class Watcher(Protocol):
    """Wants to know how the process ends."""

    def on_exception(self, error: BaseException) -> None:
        """An exception ends the script."""

    def on_exit(self) -> None:
        """The interpreter exits; called after `on_exception`, if that was."""


_watchers: list[Watcher] = []


def watch(watcher: Watcher) -> None:
    """Tell `watcher` how this process ends."""
    if not _watchers:
        sys.excepthook = _chained(sys.excepthook)
        atexit.register(_exit)
    _watchers.append(watcher)


def kind_of(error: BaseException) -> str:
    """Return the kind of a failure, as `schemas.job_folder.JobStatus.error_kind` has it."""
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return "oom"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk"
    return "network" if isinstance(error, ConnectionError) else "bug"


def _chained(before: Callable[..., object]) -> Callable[..., None]:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for watcher in tuple(_watchers):
            watcher.on_exception(error)
        before(kind, error, trace)

    return hook


def _exit() -> None:
    for watcher in tuple(_watchers):
        watcher.on_exit()


logger = logging.getLogger(__name__)

# Asks for the stacks of all threads, on standard error.
SIGNAL: int = signal.SIGRTMAX - 7 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR1


def listen() -> bool:
    """Write the stacks to standard error whenever `SIGNAL` comes; children that are forked do so, too.

    Returns:
        False if the signal has a handler already, or the system cannot do it: then nothing has changed.
    """
    if signal.getsignal(SIGNAL) != signal.SIG_DFL:
        return False
    try:
        faulthandler.register(SIGNAL, file=2, all_threads=True, chain=False)
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        logger.debug("Stacks cannot be asked for: %s", error)
        return False
    return True


def listens(pid: int) -> bool:
    """Tell whether a process catches `SIGNAL`; the default action would end it. Only Linux tells, elsewhere False."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)


RANKS = "ranks"


def record_failure(folder: Path, rank: int, error: str, kind: str, traceback: str | None) -> None:
    """Write down why a rank failed: of several failures the earliest is the cause, the others follow from it.

    Args:
        error: One sentence for the user.
        kind: `schemas.job_folder.JobStatus.error_kind`.
    """
    fields = {"rank": rank, "at": time.time(), "error": error, "kind": kind, "traceback": traceback}
    try:
        (folder / RANKS).mkdir(exist_ok=True)
        write_json(folder / RANKS / f"{rank}.json", fields)
    except OSError as fault:
        logger.warning("Why rank %d failed could not be written down: %s", rank, fault)
