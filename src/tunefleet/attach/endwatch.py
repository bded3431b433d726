"""How a process ends that is not ours: with an exception that nobody caught, or just so.

`sys.excepthook` is called for what reaches the top of the script, also under torchrun's `@record`; what the script
catches never comes there. At the exit of the interpreter everybody who watches is told.
"""

from __future__ import annotations

import atexit
import errno
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


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
    """Return the kind of a failure, as `wire.jobfolder.JobStatus.error_kind` has it."""
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
