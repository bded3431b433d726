"""Runs a child process that ends with the job and leaves no process behind."""

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

# `PR_SET_CHILD_SUBREAPER` of Linux: orphans of a child become children of this process, not of init.
_SUBREAPER: Final = 36
_POLL_S: Final = 0.1
_GRACE_S: Final = 5.0


class TimeUpError(Exception):
    """A process exceeded its time limit and was killed."""


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout_s: float | None = None,
    while_running: Callable[[], None] = lambda: None,
) -> int:
    """Run a process in this process group until it ends; it inherits the output streams.

    The child handles a SIGTERM to the group. Processes that it leaves running are killed.

    Args:
        while_running: Called several times per second; may raise to end the process.

    Raises:
        TimeUpError: If the process exceeded `timeout_s`.
    """
    _adopt_orphans()
    with _leaving_sigterm_to_the_child():
        try:
            # The child inherits the descriptors of the job's locks and holds them as long as it lives.
            process = subprocess.Popen(list(argv), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, close_fds=False)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{argv[0]} cannot be run: {reason}.", hint="It must be on the PATH of the worker's environment."
            ) from None
        try:
            return _wait(process, timeout_s, while_running)
        finally:
            _end_all(process)


def _wait(process: subprocess.Popen[bytes], timeout_s: float | None, look: Callable[[], None]) -> int:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            return process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            look()
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeUpError from None


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its descendants that are still running."""
    # All children of this process, since orphans of the child have been adopted.
    try:
        left = psutil.Process().children(recursive=True)
    except psutil.Error:
        return
    for each in left:
        logger.info("Process %d is still running and is killed.", each.pid)
        _kill(each)
    if process.poll() is None:
        process.kill()
        process.wait()
    psutil.wait_procs([each for each in left if each.pid != process.pid], timeout=_GRACE_S)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error as error:
        logger.debug("Process %d has already ended: %s", process.pid, error)


def _adopt_orphans() -> None:
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        logger.warning("Processes that leave their group may outlive the job: %s", os.strerror(ctypes.get_errno()))


@contextmanager
def _leaving_sigterm_to_the_child() -> Iterator[None]:
    """Survive a SIGTERM to the group, so that the exit of the child is observed."""
    # A handler and not SIG_IGN, which the child would inherit. Only the main thread may set one.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _ignore)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame  # the child receives the signal, too


def exit_by_signal(returncode: int) -> None:
    """End this process by the signal that ended its child, so that the supervisor sees the cause."""
    if returncode >= 0:
        return
    number = signal.Signals(-returncode)
    sys.stdout.flush()
    sys.stderr.flush()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
