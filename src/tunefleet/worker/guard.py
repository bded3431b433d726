"""What a worker decides about a running job by itself: that it ran too long, stands still, or is in somebody's way.

A launch that the worker ends for such a reason is noted first, so that a worker that is killed in between goes on
where it was, and nobody takes the end for the task's own.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tunefleet.jobs import afterword
from tunefleet.jobs.boot import boot_name
from tunefleet.jobs.makeway import MakingWay
from tunefleet.jobs.watchdog import Stall, Watchdog
from tunefleet.lifecycle.task import TaskReason
from tunefleet.spec.policy import LimitsSpec
from tunefleet.wire.link import FinishOutcome
from tunefleet.worker.limits import Runtime
from tunefleet.worker.ports import End, Handle
from tunefleet.worker.site import Site
from tunefleet.worker.watched import Interruption, Watched

logger = logging.getLogger(__name__)

MAX_RESTARTS: Final = 3
"""How often one attempt is started again after a standstill; then it fails."""
_LOOK_S: Final = 1.0
_KILL_AGAIN_S: Final = 5.0


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
    """Watches the launches of one attempt, one after the other.

    Args:
        site: Collaborators.
        token: The attempt.
        spec: The task's spec, JSON.
        notebook: Survives the worker.
    """

    def __init__(self, site: Site, token: str, spec: dict[str, Any], notebook: Notebook) -> None:
        limits = LimitsSpec.model_validate(spec.get("limits") or {})
        self._site = site
        self._token = token
        self._notebook = notebook
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
        """Whether the machine was started anew since the attempt's newest launch."""
        boot = self._notebook.watched.clock.boot
        return boot is not None and boot != boot_name()

    @property
    def overdue(self) -> bool:
        """Whether the attempt has run longer than its spec allows."""
        return self._runtime.exceeded

    def interrupted(self, handle: Handle) -> Interruption | None:
        """Return why the worker ended this launch, or is about to."""
        interruption = self._notebook.watched.interruption
        return interruption if interruption is not None and interruption.launch == handle.job.launch else None

    def started(self) -> Watched:
        """Return what is to be written down with a new launch."""
        return Watched(clock=self._runtime.start(), stall_restarts=self._notebook.watched.stall_restarts)

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
        self._tell_stall(None)
        interruption = self.interrupted(handle)
        if interruption is None or (end.outcome, end.reason) not in _OURS[interruption.why]:
            return end
        self._note(clock=self._runtime.stop())
        if interruption.why == "fail":
            return StalledEnd(interruption.text, interruption.detail)
        name, words, phase = _SAID[interruption.why]
        afterword.add(handle.folder, interruption.launch, name, words.format(interruption.text), phase=phase)
        return None

    def room(self, handle: Handle) -> bool:
        """Tell whether a launch that was interrupted may be followed by the next one now."""
        interruption, sentry = self.interrupted(handle), self._site.sentry
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
                self._tell_stall(None)
            return
        if before is not None:
            return
        self._tell_stall(self._dog.silent_s)
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
        sentry = self._site.sentry
        who = sentry.intruder(handle.job.gpus) if sentry is not None and self._site.makes_way else None
        if interruption is not None or who is None:
            return interruption
        logger.info("Task %s makes way for %s.", handle.job.task_id, who)
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
            logger.warning("Task %s is killed. %s", handle.job.task_id, interruption.text)
            handle.kill()

    def _tell_stall(self, for_s: float | None) -> None:
        self._site.outbox.stalled(self._token, for_s)

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
"""Ends that an interruption brings about; any other is the task's own, which came first."""
