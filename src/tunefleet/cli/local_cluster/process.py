"""One child process of a local fleet: started, watched, restarted with backoff, stopped."""

from __future__ import annotations

import logging
import os
import re
import signal as signals
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from tunefleet.cli.local_cluster.fork_process import SUPPORTED, Forked

# An error record of the log, or the last line of a traceback.
_ERROR: Final = re.compile(r"\b(ERROR|CRITICAL)\b|^\w*(Error|Exception)\b")

logger = logging.getLogger(__name__)

_BACKOFF_S: Final = (0.1, 10.0)
# After a run of this length the backoff starts from the beginning.
_STABLE_S: Final = 30.0


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
