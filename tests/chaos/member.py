"""A process of the world: started, killed, stopped, and started again as a service manager would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil


def until(condition: Callable[[], object], what: str, *, within_s: float = 120.0) -> None:
    """Wait until something is so; the time passes only if it never will be."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.05)


@dataclass
class Member:
    """One process that lives as long as the world.

    Args:
        name: What a schedule calls it.
        argv: How it is started.
        environment: All of it.
        log: Gets what it writes.
        cwd: Where it is started.
    """

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    cwd: Path
    deaths: list[str] = field(default_factory=list)
    """Each end that nobody has brought about, in words."""
    _process: subprocess.Popen[bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def pid(self) -> int | None:
        """Its process, while it lives."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it unless it lives."""
        with self._lock:
            if self.pid is not None:
                return
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    self.argv,
                    env=dict(self.environment),
                    cwd=self.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def look(self) -> None:
        """Note an end by itself, and start it again."""
        with self._lock:
            ended = self._process.poll() if self._process is not None else None
            if ended is None:
                return
            self.deaths.append(f"{self.name} ended by itself with code {ended}")
            self._process = None
        self.start()

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; returns whether there was somebody to send it to."""
        with self._lock:
            if self.pid is None or self._process is None:
                return False
            self._process.send_signal(number)
            if number is signal.SIGKILL:
                self._process.wait()
                self._process = None
            return True

    def stop(self, how: signal.Signals, patience_s: float) -> None:
        """End it as an operator does; one that does not heed is a death by itself, and killed."""
        with self._lock:
            if self.pid is None or self._process is None:
                return
            self._process.send_signal(how)
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self.deaths.append(f"{self.name} did not end within {patience_s:.0f} s of {how.name}")
                self._process.kill()
                self._process.wait()
            self._process = None


def of_world(mark: str) -> list[psutil.Process]:
    """Return the living processes whose environment names a world, whoever started them."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    living = []
    for pid in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def dead_children(mark: str) -> list[str]:
    """Return what stays of the children of the world's processes that nobody has waited for, in words."""
    found = []
    for parent in of_world(mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in parent.children():
                if child.status() == psutil.STATUS_ZOMBIE:
                    found.append(f"zombie {child.pid} ({child.name()}) of {' '.join(parent.cmdline()[:4])}")
    return found
