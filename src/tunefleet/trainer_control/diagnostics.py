"""How a third-party process ends: exception hook, exit hook and stack dumps.

`sys.excepthook` is called for every exception that reaches the top of the script, also under torchrun's `@record`; an
exception that the script catches is not seen. All watchers are called when the interpreter exits.
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

# Dumps the stacks of all threads to standard error. A real-time signal, because libraries use SIGUSR1 themselves.
SIGNAL: int = signal.SIGRTMAX - 7 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR1
RANKS = "ranks"
logger = logging.getLogger(__name__)


class Watcher(Protocol):
    """Is called when the process ends."""

    def on_exception(self, error: BaseException) -> None:
        """Handle an exception that ends the script."""

    def on_exit(self) -> None:
        """Handle the exit of the interpreter; called after `on_exception`, if there was an exception."""


_watchers: list[Watcher] = []


def watch(watcher: Watcher) -> None:
    """Call `watcher` when this process ends."""
    if not _watchers:
        # Installed on first use only: a process without a watcher keeps its own hooks.
        sys.excepthook = _chained(sys.excepthook)
        atexit.register(_exit)
    _watchers.append(watcher)


def kind_of(error: BaseException) -> str:
    """Return the kind of a failure, one of `schemas.job_folder.JobStatus.error_kind`."""
    # CUDA reports an exhausted device as a RuntimeError whose text says so, not as a MemoryError.
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


def listen() -> bool:
    """Dump the stacks to standard error on each `SIGNAL`, also in forked children.

    Returns:
        False if the signal has a handler already, or the system does not support it; nothing is changed then.
    """
    # A handler of the script keeps precedence.
    if signal.getsignal(SIGNAL) != signal.SIG_DFL:
        return False
    try:
        faulthandler.register(SIGNAL, file=2, all_threads=True, chain=False)
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        logger.debug("Stack dumps are not available: %s", error)
        return False
    return True


def listens(pid: int) -> bool:
    """Return whether a process catches `SIGNAL`, whose default action would end it. Linux only; elsewhere False."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)


def record_failure(folder: Path, rank: int, error: str, kind: str, traceback: str | None) -> None:
    """Record why a rank failed: of several failures the earliest is the cause, the others follow from it.

    Args:
        error: One sentence for the user.
        kind: `schemas.job_folder.JobStatus.error_kind`.
    """
    fields = {"rank": rank, "at": time.time(), "error": error, "kind": kind, "traceback": traceback}
    try:
        (folder / RANKS).mkdir(exist_ok=True)
        write_json(folder / RANKS / f"{rank}.json", fields)
    except OSError as fault:
        logger.warning("The failure of rank %d could not be recorded: %s", rank, fault)
