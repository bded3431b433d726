"""A process that `prefork` has forked, and its next ones: has of `subprocess.Popen` what a child of a fleet needs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

import psutil

# Elsewhere a fork without a new program is not safe, or its end cannot be waited for beside other things.
POSSIBLE: Final = sys.platform == "linux" and hasattr(os, "pidfd_open")
_LOOK_S: Final = 0.02
_END_S: Final = 5.0


class Forked:
    """A program that is imported once; each of its processes is a fork."""

    def __init__(
        self, program: str, arguments: Sequence[str], *, environment: Mapping[str, str], out: IO[bytes]
    ) -> None:
        self._events, told = os.pipe()
        command = [sys.executable, "-m", "tunefleet.cli.local_cluster.prefork", str(told), program, *arguments]
        try:
            self._preparing = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(told,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._events)
            raise
        finally:
            os.close(told)
        os.set_blocking(self._events, False)
        # Of one thread again and again: a second Ctrl-C ends it from within a wait for its end.
        self._lock = threading.RLock()
        self._rest = b""
        self._forked: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """Of the newest fork; before the first one, of the process that prepares it."""
        return self._preparing.pid if self._forked is None else self._forked

    def poll(self) -> int | None:
        """Return how the newest fork ended, as `Popen.poll` does; `None` while it runs or is prepared."""
        with self._lock:
            if self._code is None:
                self._hear()
            return self._code

    def again(self) -> bool:
        """Ask for the next fork after one has ended; tells whether there is still somebody to ask."""
        with self._lock:
            if self._code is None or self._preparing.poll() is not None or self._preparing.stdin is None:
                return False
            try:
                self._preparing.stdin.write(b"again\n")
                self._preparing.stdin.flush()
            except BrokenPipeError:
                return False
            self._forked = self._code = None
            return True

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, as `Popen.wait` does.

        Raises:
            subprocess.TimeoutExpired: If it has not ended after so many seconds.
        """
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - began >= timeout:
                raise subprocess.TimeoutExpired(self._preparing.args, timeout)
            time.sleep(_LOOK_S)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send the newest fork a signal; before the first one, the process that prepares it."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the newest fork at once."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Let nothing be forked any more; a fork that still runs ends within a second, as after SIGTERM."""
        if self._preparing.stdin is None or self._preparing.stdin.closed:
            return
        self._preparing.stdin.close()
        try:
            self._preparing.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._preparing.kill()
            self._preparing.wait()
        self.poll()
        with self._lock:
            if self._code is not None:
                self._deafen()

    def _hear(self) -> None:
        """Take in what was told since."""
        while True:
            try:
                said = os.read(self._events, 4096)
            except BlockingIOError:
                return
            if not said:
                self._left()
                return
            *lines, self._rest = (self._rest + said).split(b"\n")
            for line in lines:
                told = json.loads(line)
                self._forked, self._code = told.get("pid", self._forked), told.get("ended")

    def _left(self) -> None:
        """Nobody is there who tells of ends; a fork that still ends is waited for: it holds the data folder."""
        code = self._preparing.poll()
        if code is not None and self._code is None and (self._forked is None or not _lives(self._forked)):
            self._code = code or -signal.SIGKILL
            self._deafen()

    def _deafen(self) -> None:
        if self._events >= 0:
            os.close(self._events)
            self._events = -1


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
