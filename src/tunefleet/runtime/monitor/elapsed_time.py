"""Elapsed runtime of a job across its launches and restarts of its monitor.

Excludes suspended time of the machine, and time in which no launch is running, such as a preemption or a reboot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal

import psutil

from tunefleet.schemas.base import Message
from tunefleet.trainer_control import process_identity

# How often a running clock is stored: a crash of the machine loses at most this much.
_NOTE_S: Final = 60.0
# The computed boot time shifts slightly when the system clock is adjusted.
_SAME_BOOT_S: Final = 120.0


class RunClock(Message):
    """A stopwatch that is stored on disk.

    Args:
        ran_s: Elapsed time at the last stop or restart.
        running_since: Start time on the machine's monotonic clock, in seconds; None while it is stopped.
        boot: Boot of the machine in which it was started.
    """

    # The monotonic clock, not wall time: a change of the system time must not end a job.

    ran_s: float = 0.0
    running_since: float | None = None
    boot: str | None = None

    def shows(self, now: float, boot: str) -> float:
        """Return the elapsed seconds; after a reboot, the last stored value."""
        if self.running_since is None or self.boot != boot:
            return self.ran_s
        return self.ran_s + max(0.0, now - self.running_since)

    def started(self, now: float, boot: str) -> RunClock:
        """Return the running clock."""
        return RunClock(ran_s=self.shows(now, boot), running_since=now, boot=boot)

    def stopped(self, now: float, boot: str) -> RunClock:
        """Return the stopped clock."""
        return RunClock(ran_s=self.shows(now, boot), boot=boot)


class Runtime:
    """The run clock of one job, and its limit.

    Args:
        limit_s: `limits.max_runtime_s`; None for no limit.
    """

    def __init__(
        self,
        clock: RunClock,
        limit_s: float | None,
        *,
        now: Callable[[], float] = time.monotonic,
        boot: Callable[[], str] | None = None,
    ) -> None:
        self.clock = clock
        self._limit_s = limit_s
        self._now = now
        self._boot = (boot or boot_name)()

    def start(self) -> RunClock:
        """Start the clock; returns the state to store."""
        self.clock = self.clock.started(self._now(), self._boot)
        return self.clock

    def stop(self) -> RunClock:
        """Stop the clock; returns the state to store."""
        self.clock = self.clock.stopped(self._now(), self._boot)
        return self.clock

    @property
    def ran_s(self) -> float:
        """Elapsed runtime in seconds."""
        return self.clock.shows(self._now(), self._boot)

    @property
    def exceeded(self) -> bool:
        """Whether the limit is exceeded."""
        return self._limit_s is not None and self.ran_s > self._limit_s

    @property
    def worth_noting(self) -> bool:
        """Whether the clock should be stored again; call `start` for that."""
        return self._limit_s is not None and self.ran_s - self.clock.ran_s > _NOTE_S


def boot_name() -> str:
    """Return an identifier of this boot of the machine: its boot id, else the rounded boot time."""
    return process_identity.boot_id() or f"booted {round(psutil.boot_time() / _SAME_BOOT_S)}"


class Interruption(Message):
    """Why a worker or agent ends a launch."""

    launch: str
    why: Literal["restart", "fail", "yield"]
    text: str
    detail: str | None = None


class Watched(Message):
    """Monitor state of a job that survives a restart of the worker or agent."""

    clock: RunClock = RunClock()
    interruption: Interruption | None = None
    stall_restarts: int = 0
