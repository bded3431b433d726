"""A process that a job starts beside itself: it ends with the job, and nothing of it is left when it has ended."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import psutil

from tunefleet.errors import InputError

logger = logging.getLogger(__name__)

# `PR_SET_CHILD_SUBREAPER` of Linux: what a child leaves behind becomes ours, and not init's.
_SUBREAPER: Final = 36
_LOOK_S: Final = 0.1
_GRACE_S: Final = 5.0


class TimeUpError(Exception):
    """A process ran longer than it may, and was ended."""


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout_s: float | None = None,
    while_running: Callable[[], None] = lambda: None,
) -> int:
    """Run a process in this one's group until it ends; its output goes where this one's goes.

    A SIGTERM to the group is the child's to answer. What it leaves running is killed.

    Args:
        while_running: Called several times a second; may raise, which ends the process.

    Raises:
        TimeUpError: If the time was up.
    """
    _adopt_orphans()
    with _leaving_sigterm_to_the_child():
        try:
            # The descriptors that it inherits are those of the job's locks: it holds them as long as it lives.
            process = subprocess.Popen(list(argv), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, close_fds=False)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{argv[0]} cannot be run: {reason}.", hint="It is looked for in the PATH of the worker's environment."
            ) from None
        try:
            return _wait(process, timeout_s, while_running)
        finally:
            _end_all(process)


def _wait(process: subprocess.Popen[bytes], timeout_s: float | None, look: Callable[[], None]) -> int:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            return process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            look()
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeUpError from None


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """End what still runs of the process and of what it has started."""
    try:
        left = psutil.Process().children(recursive=True)
    except psutil.Error:
        return
    for each in left:
        logger.info("Process %d is left and is killed.", each.pid)
        _kill(each)
    if process.poll() is None:
        process.kill()
        process.wait()
    psutil.wait_procs([each for each in left if each.pid != process.pid], timeout=_GRACE_S)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error as error:
        logger.debug("Process %d is gone already: %s", process.pid, error)


def _adopt_orphans() -> None:
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        logger.warning("Processes that leave their group outlive the job: %s", os.strerror(ctypes.get_errno()))


@contextmanager
def _leaving_sigterm_to_the_child() -> Iterator[None]:
    """Outlive a SIGTERM to the group, so that the child's end is seen; a handler, since it would inherit an ignore."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _noted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _noted(number: int, frame: FrameType | None) -> None:
    del number, frame  # the child has got it, too


def end_like(returncode: int) -> None:
    """End this process by the signal that ended its child, so that its end tells what has happened."""
    if returncode >= 0:
        return
    number = signal.Signals(-returncode)
    sys.stdout.flush()
    sys.stderr.flush()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
