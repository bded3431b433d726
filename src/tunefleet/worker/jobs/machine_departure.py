"""A job whose machine is taken away soon: it saves, ends, and its task goes on elsewhere at no cost to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime.monitor.eviction import MakingWay
from tunefleet.runtime.monitor.guard import End
from tunefleet.schemas.worker_link import FinishOutcome
from tunefleet.worker.mailbox import Mailbox
from tunefleet.worker.ports import Handle

# How a job ends that makes way: at its checkpoint, or killed while there was nothing to save.
_MADE_WAY: Final = frozenset(
    {("paused", TaskReason.PAUSED), ("failed", TaskReason.KILLED), ("failed", TaskReason.CRASHED)}
)


@dataclass(frozen=True, slots=True)
class LeftEnd:
    """The end of a job that has made way; its newest checkpoint is where the task goes on."""

    outcome: FinishOutcome = "released"
    reason: TaskReason = TaskReason.RELEASED
    error: str | None = None
    detail: str | None = None


class Leaving:
    """Makes the launches of one job give way once the worker is told to."""

    def __init__(self, mailbox: Mailbox, *, leads: bool) -> None:
        self._mailbox = mailbox
        self._leads = leads
        self._way: MakingWay | None = None

    @property
    def wanted(self) -> bool:
        """Whether the machine is taken away soon."""
        return self._mailbox.makes_way

    def push(self, handle: Handle) -> None:
        """Do what is due about a live launch."""
        if self.wanted and self._leads:
            self._way = self._way or MakingWay(handle)
            self._way.push()

    def left(self, end: End) -> LeftEnd | None:
        """Return the end of a launch that has made way; None if it has come to its end by itself, or is to go on."""
        told = self._way is not None or (
            # Some systems signal every process on the machine: then the launch is gone before it could be told.
            self.wanted and self._leads and end.reason == TaskReason.KILLED
        )
        return LeftEnd() if told and (end.outcome, end.reason) in _MADE_WAY else None
