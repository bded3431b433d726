"""One child process of a local fleet: started, watched, restarted with backoff, stopped."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import signal as signals
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import psutil

# An error record of the log, or the last line of a traceback.
_ERROR: Final = re.compile(r"\b(ERROR|CRITICAL)\b|^\w*(Error|Exception)\b")
logger = logging.getLogger(__name__)
_BACKOFF_S: Final = (0.1, 10.0)
# After a run of this length the backoff starts from the beginning.
_STABLE_S: Final = 30.0
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


class Child:
    """A module in a process of its own, with its output appended to a log file.

    Args:
        program: Module whose `main` is forked instead of started, where the system supports it
            (`fork_process.SUPPORTED`); restarts are then much faster.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        program: str | None = None,
    ) -> None:
        self.name = name
        self.label = f"The {name}"
        self.log = log
        self._command = [
            sys.executable,
            "-m",
            "tunefleet.cli.local_cluster.child",
            str(os.getpid()),
            module,
            *arguments,
        ]
        self._arguments = list(arguments)
        self._program = program if SUPPORTED else None
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._started_at = 0.0
        self._log_start = 0
        self._failures = 0
        self._restart_at: float | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; `None` if it is not running."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Its last exit code; `None` while it runs."""
        return self._process.poll() if self._process is not None else None

    def start(self) -> None:
        """Start it."""
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            # Errors before this position belong to earlier runs.
            self._log_start = out.tell()
            if not (isinstance(self._process, Forked) and self._process.refork()):
                self._release()
                self._process = self._start_process(out)
        self._started_at = time.monotonic()
        self._restart_at = None

    def _start_process(self, out: IO[bytes]) -> subprocess.Popen[bytes] | Forked:
        if self._program is not None:
            return Forked(self._program, self._arguments, environment=self._environment, out=out)
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,  # Ctrl-C in the terminal goes to the parent only
        )

    def _release(self) -> None:
        if isinstance(self._process, Forked):
            self._process.close()

    def restart_if_dead(self) -> None:
        """Restart it if it has died and its backoff has passed; called periodically."""
        if self.running:
            return
        now = time.monotonic()
        if self._restart_at is None:
            self._failures = 1 if now - self._started_at > _STABLE_S else self._failures + 1
            first, longest = _BACKOFF_S
            # Doubles with each failure: 0.1 s, 0.2 s, … up to 10 s.
            self._restart_at = now + min(longest, first * 2.0 ** (self._failures - 1))
            logger.warning("%s; restarting.", self.describe_end())
        elif now >= self._restart_at:
            self.start()

    def describe_end(self) -> str:
        """Return how it ended, such as `Worker box-1 was killed (signal 9)`."""
        code = self.returncode or 0
        if code < 0:
            return f"{self.label} was killed (signal {-code})"
        error = self._last_error()
        return f"{self.label} ended with status {code}" + (f": {error.rstrip('.')}" if error else "")

    def _last_error(self) -> str | None:
        """Return the last error of its last run; other output does not explain an exit."""
        lines = self._log_lines()
        found = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        found = found or [line for line in lines if _ERROR.search(line)]
        return found[-1] if found else None

    def last_output(self) -> str | None:
        """Return the last error of its last run, or else its last line of output."""
        lines = self._log_lines()
        return self._last_error() or (lines[-1] if lines else None)

    def _log_lines(self) -> list[str]:
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_start)
                return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        except OSError:
            return []

    def signal(self, number: signals.Signals) -> None:
        """Send it a signal if it runs."""
        if self.running and self._process is not None:
            self._process.send_signal(number)

    def stop(self, number: signals.Signals, *, patience_s: float) -> None:
        """Stop it with a signal, and with SIGKILL after `patience_s`."""
        if self._process is None:
            return
        self.signal(number)
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            logger.warning("The %s did not exit within %.0f s; killing it.", self.name, patience_s)
            self._process.kill()
            self._process.wait()
        self._release()

    def kill(self) -> None:
        """Kill it without waiting for its end."""
        self.signal(signals.SIGKILL)
        self._release()
