"""What a worker or agent decides about a job by itself: that it ran too long, stands still, or is in somebody's way.

A launch that is ended for such a reason is noted first, so that one who is killed in between goes on where they were,
and nobody takes the end for the job's own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import exit_classification
from tunefleet.runtime.monitor.elapsed_time import Interruption, Runtime, Watched, boot_name
from tunefleet.runtime.monitor.eviction import MakingWay, Pausable
from tunefleet.runtime.monitor.preemption import GpuSentry
from tunefleet.runtime.monitor.stall_detector import Stall, Watchdog
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_link import FinishOutcome
from tunefleet.spec.options.policy import LimitsSpec

logger = logging.getLogger(__name__)

# How often one job is started again after a standstill; then it fails.
MAX_RESTARTS: Final = 3
_LOOK_S: Final = 1.0
_KILL_AGAIN_S: Final = 5.0


# Takes for how many seconds a job has shown no life, and that in a sentence; None and None: it is over.
StallChange = Callable[[float | None, str | None], None]


class End(Protocol):
    """How a launch ended: `JobEnd` fits."""

    @property
    def outcome(self) -> FinishOutcome:
        """Completed, failed, cancelled or paused."""

    @property
    def reason(self) -> TaskReason:
        """Why."""

    @property
    def error(self) -> str | None:
        """One sentence, if it failed."""

    @property
    def detail(self) -> str | None:
        """The last traceback, if there is one."""


class Handle(Pausable, Protocol):
    """A launch that is watched: `JobHandle` fits."""

    @property
    def folder(self) -> JobFolder:
        """Where it runs."""


@dataclass(frozen=True, slots=True)
class StalledEnd:
    """The end of a job that stood still."""

    error: str
    detail: str | None
    outcome: FinishOutcome = "failed"
    reason: TaskReason = TaskReason.STALLED


class Notebook(Protocol):
    """Where the guard writes down what it does before it does it."""

    @property
    def watched(self) -> Watched:
        """What was written last."""

    def note_watched(self, watched: Watched) -> None:
        """Write, synced."""


class Guard:
    """Watches the launches of one job, one after the other.

    Args:
        sentry: Knows who else uses the GPUs; None if nobody is heeded.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        notebook: Notebook,
        *,
        sentry: GpuSentry | None = None,
        makes_way: bool = False,
        on_stall_change: StallChange = lambda _for_s, _sentence: None,
    ) -> None:
        limits = LimitsSpec.model_validate(spec.get("limits") or {})
        self._notebook = notebook
        self._sentry = sentry
        self._makes_way = makes_way
        self._tell_stall = on_stall_change
        self._on_stall: str = spec.get("on_stall") or "keep"
        self._stall_after_s = limits.stall_after_s
        self._runtime = Runtime(notebook.watched.clock, limits.max_runtime_s)
        self._launch: str | None = None
        self._dog: Watchdog | None = None
        self._way: MakingWay | None = None
        self._stall: Stall | None = None
        self._next_look = 0.0
        self._next_kill = 0.0

    @property
    def rebooted(self) -> bool:
        """Whether the machine was started anew since the job's newest launch."""
        boot = self._notebook.watched.clock.boot
        return boot is not None and boot != boot_name()

    @property
    def overdue(self) -> bool:
        """Whether the job has run longer than its spec allows."""
        return self._runtime.exceeded

    def interrupted(self, handle: Handle) -> Interruption | None:
        """Return why this launch was ended by its watcher, or is about to be."""
        interruption = self._notebook.watched.interruption
        return interruption if interruption is not None and interruption.launch == handle.job.launch else None

    def started(self) -> Watched:
        """Return what is to be written down with a new launch."""
        return Watched(clock=self._runtime.start(), stall_restarts=self._notebook.watched.stall_restarts)

    def ended(self) -> Watched:
        """Return what is to be written down with the job's end: its clock stands still."""
        return self._notebook.watched.model_copy(update={"clock": self._runtime.stop()})

    def look(self, handle: Handle) -> None:
        """Look after a live launch; called several times a second, most often does nothing."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        self._begin(handle)
        if self._runtime.worth_noting:
            self._note(clock=self._runtime.start())
        interruption = self.interrupted(handle)
        if interruption is None:
            self._watch_progress(handle)
            interruption = self._watch_gpus(handle)
        if interruption is not None:
            self._press(handle, interruption)

    def verdict(self, handle: Handle, end: End) -> End | None:
        """Say what an end means: the end to deliver, or None: launch again as soon as there is room."""
        clock = self._runtime.stop()
        self._tell_stall(None, None)
        interruption = self.interrupted(handle)
        if interruption is None or (end.outcome, end.reason) not in _OURS[interruption.why]:
            return end
        self._note(clock=clock)
        if interruption.why == "fail":
            return StalledEnd(interruption.text, interruption.detail)
        name, words, phase = _SAID[interruption.why]
        exit_classification.add(handle.folder, interruption.launch, name, words.format(interruption.text), phase=phase)
        return None

    def room(self, handle: Handle) -> bool:
        """Tell whether a launch that was interrupted may be followed by the next one now."""
        interruption, sentry = self.interrupted(handle), self._sentry
        yielded = interruption is not None and interruption.why == "yield"
        return not yielded or sentry is None or sentry.quiet(handle.job.gpus)

    def _begin(self, handle: Handle) -> None:
        if self._launch == handle.job.launch:
            return
        self._launch = handle.job.launch
        self._dog = Watchdog(handle.folder, handle.job, self._stall_after_s)
        self._way = None
        self._stall = None
        self._next_kill = 0.0

    def _watch_progress(self, handle: Handle) -> None:
        assert self._dog is not None, "_begin made it"
        before, self._stall = self._stall, self._dog.look()
        if self._stall is None:
            if before is not None:
                self._tell_stall(None, None)
            return
        if before is not None:
            return
        self._tell_stall(self._dog.silent_s, self._stall.sentence)
        if self._on_stall == "keep":
            return
        restarts = self._notebook.watched.stall_restarts
        text = self._stall.sentence
        again = self._on_stall == "restart" and restarts < MAX_RESTARTS
        if not again and self._on_stall == "restart":
            text = f"{text} It was started again {restarts} times before."
        interruption = Interruption(
            launch=handle.job.launch,
            why="restart" if again else "fail",
            text=text,
            detail=self._stall.detail,
        )
        self._note(interruption=interruption, stall_restarts=restarts + again)

    def _watch_gpus(self, handle: Handle) -> Interruption | None:
        interruption = self.interrupted(handle)
        sentry = self._sentry
        who = sentry.intruder(handle.job.gpus) if sentry is not None and self._makes_way else None
        if interruption is not None or who is None:
            return interruption
        logger.info("job(%s) makes way for %s", handle.job.job_id, who)
        interruption = Interruption(launch=handle.job.launch, why="yield", text=who)
        self._note(interruption=interruption)
        return interruption

    def _press(self, handle: Handle, interruption: Interruption) -> None:
        """Bring about what was noted; again and again until the launch has ended."""
        if interruption.why == "yield":
            self._way = self._way or MakingWay(handle)
            self._way.push()
        elif time.monotonic() >= self._next_kill:
            # A process that hangs hears no SIGTERM.
            self._next_kill = time.monotonic() + _KILL_AGAIN_S
            logger.warning("job(%s) is killed. %s", handle.job.job_id, interruption.text)
            handle.kill()

    def _note(self, **changes: object) -> None:
        self._notebook.note_watched(self._notebook.watched.model_copy(update=changes))


_SAID: Final = {
    "restart": ("job.restarted", "{} It is started again from its newest checkpoint.", None),
    "yield": ("job.yielded", "The job makes way for {}; it goes on when the GPU is free again.", "yielded"),
}
_KILLED: Final = frozenset({("failed", TaskReason.KILLED), ("failed", TaskReason.CRASHED)})
_OURS: Final[dict[str, frozenset[tuple[str, TaskReason]]]] = {
    "restart": _KILLED,
    "fail": _KILLED,
    "yield": _KILLED | {("paused", TaskReason.PAUSED)},
}
"""Ends that an interruption brings about; any other is the job's own, which came first."""
