"""What the watching over a job must remember over a restart of who watches."""

from __future__ import annotations

from typing import Literal

from tunefleet.runtime.monitor.elapsed_time import RunClock
from tunefleet.schemas.base import Message


class Interruption(Message):
    """Why a worker or agent ends a launch.

    Args:
        launch: Which launch.
        why: `restart` and `fail` after a standstill, `yield` for somebody else on its GPU.
        text: For people.
        detail: The stacks of a standstill.
    """

    launch: str
    why: Literal["restart", "fail", "yield"]
    text: str
    detail: str | None = None


class Watched(Message):
    """What must be remembered of a job over a restart of who watches it.

    Args:
        clock: How long its launches ran.
        interruption: Why the newest launch was ended from outside, if it was.
        stall_restarts: How often it was started again after a standstill.
    """

    clock: RunClock = RunClock()
    interruption: Interruption | None = None
    stall_restarts: int = 0
