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

from tunefleet.cli.local_cluster.fork_process import POSSIBLE, Forked

# A log record of a fault, or the end of a traceback.
_ERROR: Final = re.compile(r"\b(ERROR|CRITICAL)\b|^\w*(Error|Exception)\b")

logger = logging.getLogger(__name__)

_BACKOFF_S: Final = (0.1, 10.0)
_STEADY_S: Final = 30.0
"""A child that lived this long starts its next restart without backoff."""


class Child:
    """A module that runs as a process of its own, its output appended to a log file.

    Args:
        program: The module whose `main` it runs, where that is to be imported but once: the child is a fork then, where
            the system can (`forked.POSSIBLE`), and starts again at once.
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
        self.called = f"The {name}"
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
        self._program = program if POSSIBLE else None
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._started_at = 0.0
        self._log_start = 0
        self._failures = 0
        self._restart_at: float | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; `None` if it does not run."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """How it ended last; `None` while it runs."""
        return self._process.poll() if self._process is not None else None

    def start(self) -> None:
        """Start it, in a session of its own: Ctrl-C in the terminal is for the parent alone."""
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._log_start = out.tell()
            if not (isinstance(self._process, Forked) and self._process.again()):
                self._release()
                self._process = self._begun(out)
        self._started_at = time.monotonic()
        self._restart_at = None

    def _begun(self, out: IO[bytes]) -> subprocess.Popen[bytes] | Forked:
        if self._program is not None:
            return Forked(self._program, self._arguments, environment=self._environment, out=out)
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,
        )

    def _release(self) -> None:
        if isinstance(self._process, Forked):
            self._process.close()

    def keep(self) -> None:
        """Start it again if it has died and its backoff is over; call it again and again."""
        if self.running:
            return
        now = time.monotonic()
        if self._restart_at is None:
            self._failures = 1 if now - self._started_at > _STEADY_S else self._failures + 1
            first, longest = _BACKOFF_S
            self._restart_at = now + min(longest, first * 2.0 ** (self._failures - 1))
            logger.warning("%s; it is started again.", self.end())
        elif now >= self._restart_at:
            self.start()

    def end(self) -> str:
        """Say how it ended, such as `Worker box-1 was killed (signal 9)`."""
        code = self.returncode or 0
        if code < 0:
            return f"{self.called} was killed (signal {-code})"
        error = self._last_error()
        return f"{self.called} ended with status {code}" + (f": {error.rstrip('.')}" if error else "")

    def _last_error(self) -> str | None:
        """Return what its last run said of an error; what it said when all was well explains no end."""
        lines = self._said()
        found = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        found = found or [line for line in lines if _ERROR.search(line)]
        return found[-1] if found else None

    def last_words(self) -> str | None:
        """Return the error sentence that its last run printed; failing that its last line, if it printed anything."""
        lines = self._said()
        return self._last_error() or (lines[-1] if lines else None)

    def _said(self) -> list[str]:
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_start)
                return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        except OSError:
            return []

    def signal(self, number: signals.Signals) -> None:
        """Send it a signal, if it runs."""
        if self.running and self._process is not None:
            self._process.send_signal(number)

    def stop(self, number: signals.Signals, *, patience_s: float) -> None:
        """End it with a signal; after the patience, with SIGKILL."""
        if self._process is None:
            return
        self.signal(number)
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            logger.warning("The %s did not end within %.0f s; it is killed.", self.name, patience_s)
            self._process.kill()
            self._process.wait()
        self._release()

    def kill(self) -> None:
        """End it at once, and do not wait for it."""
        self.signal(signals.SIGKILL)
        self._release()
