"""What the watching over an attempt's job must remember over a restart of the worker."""

from __future__ import annotations

from typing import Literal

from tunefleet.wire.base import Message
from tunefleet.worker.limits import RunClock


class Interruption(Message):
    """Why the worker ends a launch.

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
    """What must be remembered of an attempt over a restart of the worker.

    Args:
        clock: How long its jobs ran.
        interruption: Why the worker ended the newest launch, if it did.
        stall_restarts: How often it was started again after a standstill.
    """

    clock: RunClock = RunClock()
    interruption: Interruption | None = None
    stall_restarts: int = 0
