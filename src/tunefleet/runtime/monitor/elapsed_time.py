"""How long a job has run: by the machine's monotonic clock, over its launches and restarts of who watches it.

Neither a wall clock that is set nor a machine that sleeps counts; nor does the time in which none of its
launches lives, because it makes way for somebody or because the machine is down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal

import psutil

from tunefleet.schemas.base import Message
from tunefleet.trainer_control import process_identity

# How often a running clock is written down: what a crash of the machine can make it lose.
_NOTE_S: Final = 60.0


class RunClock(Message):
    """A stop watch that lies on disk.

    Args:
        running_since: The machine's monotonic clock at that moment, in seconds; None while it stands still.
    """

    ran_s: float = 0.0
    running_since: float | None = None
    boot: str | None = None

    def shows(self, now: float, boot: str) -> float:
        """Return the seconds that it shows; of another boot, what was written down last."""
        if self.running_since is None or self.boot != boot:
            return self.ran_s
        return self.ran_s + max(0.0, now - self.running_since)

    def started(self, now: float, boot: str) -> RunClock:
        """Return it running from now on."""
        return RunClock(ran_s=self.shows(now, boot), running_since=now, boot=boot)

    def stopped(self, now: float, boot: str) -> RunClock:
        """Return it standing still."""
        return RunClock(ran_s=self.shows(now, boot), boot=boot)


class Runtime:
    """The run clock of one job, and its limit.

    Args:
        limit_s: `limits.max_runtime_s`; None is no limit.
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
        """Let it run; returns what is to be written down."""
        self.clock = self.clock.started(self._now(), self._boot)
        return self.clock

    def stop(self) -> RunClock:
        """Let it stand still; returns what is to be written down."""
        self.clock = self.clock.stopped(self._now(), self._boot)
        return self.clock

    @property
    def ran_s(self) -> float:
        """How long the job has run."""
        return self.clock.shows(self._now(), self._boot)

    @property
    def exceeded(self) -> bool:
        """Whether it ran longer than it may."""
        return self._limit_s is not None and self.ran_s > self._limit_s

    @property
    def worth_noting(self) -> bool:
        """Whether so much has passed that it should be written down again; call `start` for that."""
        return self._limit_s is not None and self.ran_s - self.clock.ran_s > _NOTE_S


_SAME_BOOT_S: Final = 120.0


def boot_name() -> str:
    """Return a name of this boot of the machine: its id, or where there is none, the moment of the boot."""
    return process_identity.boot_id() or f"booted {round(psutil.boot_time() / _SAME_BOOT_S)}"


class Interruption(Message):
    """Why a worker or agent ends a launch."""

    launch: str
    why: Literal["restart", "fail", "yield"]
    text: str
    detail: str | None = None


class Watched(Message):
    """What must be remembered of a job over a restart of who watches it."""

    clock: RunClock = RunClock()
    interruption: Interruption | None = None
    stall_restarts: int = 0
