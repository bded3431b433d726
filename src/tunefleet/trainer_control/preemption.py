"""SIGTERM handling of a trainer: save at the end of the step and pause, on all ranks; a second one ends the process.

`timeout`, systemd, Slurm and spot machines signal a whole process group, so any rank that gets it asks rank 0. A
thread reads the signal from the interpreter's wake-up pipe: the main thread may be in a CUDA kernel, where no Python
handler runs, and a second signal must end it nevertheless.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from .control.command_queue import ClosedError, CommandQueue
from .files import read_json
from .session import JobSession

logger = logging.getLogger("tunefleet.control")

# Signals within this time of the first one count as one: a launcher forwards what its whole group was sent.
_SAME_S: Final = 2.0
# Prefix of the command id of the pause that a signal requests.
PREFIX: Final = "sigterm-"


class SigtermPause:
    """Turns SIGTERM into a pause between the begin and the end of a training run.

    Args:
        session: The job's session; its folder shows whether the job is being ended anyway.
        board: Takes the pause command.
    """

    def __init__(self, session: JobSession, board: CommandQueue) -> None:
        self._session = session
        self._launch = session.job.get("launch")  # a callback without a job folder has none
        self._board = board
        self._broken: Callable[[], bool] = bool
        self._first_at: float | None = None
        self._ends: tuple[int, int] | None = None
        self._before: Any = None

    def begin(self, broken: Callable[[], bool]) -> None:
        """Install the handler, unless the script or the Trainer has one; does nothing outside of the main thread.

        Args:
            broken: Whether a rank is lost, in which case nothing can be saved.
        """
        self._broken = broken
        can_install = os.name == "posix" and threading.current_thread() is threading.main_thread()
        if self._ends is not None or not can_install:
            return
        # A script with its own handler, such as a Trainer that saves on SIGTERM, keeps it.
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        ends = os.pipe()
        # The interpreter writes to the pipe in a signal handler, which must never block.
        for end in ends:
            os.set_blocking(end, False)
        before = signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
        if before != -1:  # an event loop uses it; the Python handler alone must do
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        os.set_blocking(ends[0], True)
        self._ends = ends
        signal.signal(signal.SIGTERM, self._handle if before != -1 else _nothing)
        threading.Thread(target=self._listen, args=(ends[0],), name="tunefleet-sigterm", daemon=True).start()
        # A forked child gets the signal from its own parent; it must not answer for this process.
        os.register_at_fork(after_in_child=self._forget)

    def end(self) -> None:
        """Restore the default handling of the signal."""
        if self._ends is None or threading.current_thread() is not threading.main_thread():
            return
        ends, self._ends = self._ends, None
        if signal.getsignal(signal.SIGTERM) in (self._handle, _nothing):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, ends[1]):  # another library's, installed before or since
            signal.set_wakeup_fd(current, warn_on_full_buffer=False)
        os.close(ends[1])  # the thread reads EOF, and closes its own end

    def heard(self) -> None:
        """Request the pause; end the process if it was requested before, or nothing can be saved any more."""
        now = time.monotonic()
        if self._must_end() or (self._first_at is not None and now - self._first_at > _SAME_S):
            _die()
        if self._first_at is not None:
            return
        self._first_at = now
        logger.warning("SIGTERM: saving at the end of this step, then pausing; send it again to end immediately")
        try:
            self._board.submit("pause", {}, f"{PREFIX}{self._launch or os.getpid()}")
        except ClosedError:
            _die()

    def _must_end(self) -> bool:
        folder = self._session.folder
        noted = (read_json(folder / "cancel.json") or {}).get("launch")
        cancelled = noted is not None and noted == self._launch
        aborted = (read_json(folder / "status.json") or {}).get("intent") == "abort"
        return cancelled or aborted or self._broken()

    def _handle(self, *_: object) -> None:
        self.heard()

    def _listen(self, pipe: int) -> None:
        # Unbuffered, so that a signal is read as soon as it arrives.
        with os.fdopen(pipe, "rb", buffering=0) as signals:
            while numbers := signals.read(64):
                if signal.SIGTERM in numbers:
                    self.heard()

    def _forget(self) -> None:
        if self._ends is not None:
            self._ends = None
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _nothing(*_: object) -> None:
    """Replace the default action, which would end the process before the pipe is read."""


def _die() -> None:
    """End this process by SIGTERM, from any thread.

    `signal.signal` works in the main thread only, so libc resets the handler.
    """
    ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
    os.kill(os.getpid(), signal.SIGTERM)
