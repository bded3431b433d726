"""A process forked by `prefork`, and its successors, with the part of the `subprocess.Popen` API that is needed."""

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

# Other systems: fork without exec is unsafe (macOS), or there is no pidfd to wait for with `select`.
SUPPORTED: Final = sys.platform == "linux" and hasattr(os, "pidfd_open")
_POLL_S: Final = 0.02
_END_S: Final = 5.0


class Forked:
    """A program that is imported once and forked for each start."""

    def __init__(
        self, program: str, arguments: Sequence[str], *, environment: Mapping[str, str], out: IO[bytes]
    ) -> None:
        self._events, write_end = os.pipe()
        command = [sys.executable, "-m", "tunefleet.cli.local_cluster.prefork", str(write_end), program, *arguments]
        try:
            self._fork_server = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._events)
            raise
        finally:
            # Only the fork server holds the write end: its exit is then visible as end of file.
            os.close(write_end)
        # `poll` must return immediately.
        os.set_blocking(self._events, False)
        # Reentrant: on a second Ctrl-C the signal handler kills the child while this thread waits for it.
        self._lock = threading.RLock()
        self._buffer = b""
        self._forked: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """Id of the newest fork; before the first one, of the fork server."""
        return self._fork_server.pid if self._forked is None else self._forked

    def poll(self) -> int | None:
        """Return the exit code of the newest fork as `Popen.poll` does; `None` while it starts or runs."""
        with self._lock:
            if self._code is None:
                self._read_events()
            return self._code

    def refork(self) -> bool:
        """Request the next fork after one has ended; returns whether the fork server still runs."""
        with self._lock:
            if self._code is None or self._fork_server.poll() is not None or self._fork_server.stdin is None:
                return False
            try:
                self._fork_server.stdin.write(b"again\n")
                self._fork_server.stdin.flush()
            except BrokenPipeError:
                return False
            self._forked = self._code = None
            return True

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end as `Popen.wait` does.

        Raises:
            subprocess.TimeoutExpired: If it still runs after `timeout` seconds.
        """
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - began >= timeout:
                raise subprocess.TimeoutExpired(self._fork_server.args, timeout)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the newest fork, or before the first one to the fork server."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the newest fork."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Stop the fork server; a fork that still runs ends within a second, as on SIGTERM."""
        if self._fork_server.stdin is None or self._fork_server.stdin.closed:
            return
        # The end of its input ends the fork server.
        self._fork_server.stdin.close()
        try:
            self._fork_server.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._fork_server.kill()
            self._fork_server.wait()
        self.poll()
        with self._lock:
            if self._code is not None:
                self._close_events()

    def _read_events(self) -> None:
        """Read new events of the fork server."""
        while True:
            try:
                data = os.read(self._events, 4096)
            except BlockingIOError:
                return
            if not data:
                self._on_server_end()
                return
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                event = json.loads(line)
                self._forked, self._code = event.get("pid", self._forked), event.get("ended")

    def _on_server_end(self) -> None:
        """Handle the end of the fork server."""
        # A fork that is still ending counts as running: it holds the lock of the data folder.
        code = self._fork_server.poll()
        if code is not None and self._code is None and (self._forked is None or not _is_alive(self._forked)):
            self._code = code or -signal.SIGKILL
            self._close_events()

    def _close_events(self) -> None:
        if self._events >= 0:
            os.close(self._events)
            self._events = -1


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
