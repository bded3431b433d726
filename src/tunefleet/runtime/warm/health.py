"""Whether a fork server can still fork safely, and whether it is still needed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import tunefleet
from tunefleet.trainer_control import process_identity

# How long the server outlives its last client: a killed worker is usually restarted within this time.
ORPHAN_S = 30.0

_CHECK_S = 5.0
_MAX_SHUTDOWNS = 100


@dataclass(frozen=True)
class Fitness:
    """State of the process after its imports; a fork is safe only while it is unchanged."""

    threads: int
    packages: tuple[int, ...]
    source: int

    @classmethod
    def now(cls, source: int | None = None) -> Fitness:
        """Return the current state of the process."""
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names only, once a fork
        return cls(threads, _packages(), newest_source() if source is None else source)

    def fault(self) -> str | None:
        """Return why a fork would be unsafe or stale, or None."""
        now = Fitness.now()
        torch = sys.modules.get("torch")
        if now.threads != self.threads:
            return f"it has {now.threads} threads instead of {self.threads}"
        if torch is not None and torch.cuda.is_initialized():
            return "CUDA has been initialized in it"
        if _open_devices():
            return f"it has opened {_open_devices()[0]}"
        if now.packages != self.packages:
            return "an installed package has changed"
        if now.source != self.source:
            return "Tunefleet itself has changed"
        return None


@dataclass
class ClientTracker:
    """Tracks the clients of the server, and whether it is still needed."""

    idle_s: float
    orphan_s: float
    _users: dict[int, float | None] = field(default_factory=dict)
    _requested_at: float = field(default_factory=time.monotonic)
    _seen_at: float = field(default_factory=time.monotonic)
    _released: bool = False

    def connected(self, pid: int, *, requested: bool = False) -> None:
        """Record that a process has connected, and whether it requested a job."""
        now, self._released = time.monotonic(), False
        self._users[pid], self._seen_at = process_identity.process_started_at(pid), now
        if requested:
            self._requested_at = now

    def released(self, pid: int) -> bool:
        """Record that a process has released the server; returns whether no other client is left."""
        self._users.pop(pid, None)
        self._released = not self._users
        return self._released

    def stop_reason(self) -> str | None:
        """Return why the server may end, or None while it may be needed."""
        now = time.monotonic()
        if self._released:
            return "all clients have disconnected"
        if now - self._requested_at >= self.idle_s:
            return f"no job was requested for {self.idle_s:.0f} s"
        self._users = {
            pid: at for pid, at in self._users.items() if at and process_identity.process_started_at(pid) == at
        }
        if self._users:
            self._seen_at = now
        return "all clients are gone" if now - self._seen_at >= self.orphan_s else None

    @property
    def check_interval_s(self) -> float:
        """Interval between two checks, in seconds."""
        return min(_CHECK_S, self.idle_s, self.orphan_s)


def close_nvml() -> None:
    """Shut down NVML, which libraries have initialized to detect GPUs and have not shut down."""
    # Otherwise its open device files would make every fork look unsafe.
    with contextlib.suppress(OSError, AttributeError):  # not loaded, or not NVIDIA's library
        library = ctypes.CDLL("libnvidia-ml.so.1", mode=os.RTLD_NOLOAD)
        # NVML counts its initializations; the limit is for stubs that do not.
        for _ in range(_MAX_SHUTDOWNS):
            if library.nvmlShutdown() != 0:
                break


def newest_source() -> int:
    """Return the newest modification time of Tunefleet's own source."""
    return max((file.stat().st_mtime_ns for file in Path(tunefleet.__path__[0]).rglob("*.py")), default=0)


def _packages() -> tuple[int, ...]:
    """Return the modification times of package folders, which change with every installation."""
    return tuple(Path(entry).stat().st_mtime_ns for entry in sys.path if entry and Path(entry).is_dir())


def _open_devices() -> list[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only, once a fork
        with contextlib.suppress(OSError):
            links.append(str(Path(f"/proc/self/fd/{name}").readlink()))
    return [link for link in links if link.startswith("/dev/nvidia")]
