"""What the agent decides about a running job by itself: that it ran too long or stands still.

A launch that is ended for such a reason is noted first, so that an agent that is killed in between goes on where it
was, and nobody takes the end for the job's own.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from tunefleet.agent.job import AgentJob
from tunefleet.agent.records import Interruption
from tunefleet.jobs import JobEnd, JobHandle, afterword
from tunefleet.jobs.watchdog import Watchdog
from tunefleet.lifecycle.task import TaskReason
from tunefleet.spec.policy import LimitsSpec

logger = logging.getLogger(__name__)

MAX_RESTARTS: Final = 3
_LOOK_S: Final = 1.0
_KILL_AGAIN_S: Final = 5.0
_NOTE_S: Final = 60.0
_KILLED: Final = frozenset({TaskReason.KILLED, TaskReason.CRASHED})


class Guard:
    """Watches the launches of one job, one after the other.

    Args:
        job: The job.
    """

    def __init__(self, job: AgentJob) -> None:
        spec = job.record.spec
        limits = LimitsSpec.model_validate(spec.get("limits") or {})
        self._job = job
        self._on_stall: str = spec.get("on_stall") or "keep"
        self._stall_after_s = limits.stall_after_s
        self._max_runtime_s = limits.max_runtime_s
        self._handle: JobHandle | None = None
        self._dog: Watchdog | None = None
        self._stalled = False
        self._next_look = self._next_kill = 0.0
        self._counted_to = time.monotonic()

    def look(self, handle: JobHandle) -> None:
        """Look after a live launch; called several times a second, most often does nothing."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        if self._handle is not handle:
            self._handle, self._stalled = handle, False
            self._dog = Watchdog(handle.folder, handle.job, self._stall_after_s)
            self._counted_to = now
        if self._interruption(handle) is None:
            self._check(handle, now)
        self._press(handle, now)

    def verdict(self, handle: JobHandle, end: JobEnd) -> str | None:
        """Say what an end means.

        Returns:
            `again` if the launch was ended so that another one goes on, an error sentence if it was ended for good, or
            None if the end is the job's own.
        """
        self._count(time.monotonic())
        interruption = self._interruption(handle)
        if interruption is None or not (end.reason in _KILLED or end.outcome == "cancelled"):
            return None
        if interruption.why in ("fail", "timeout"):
            return interruption.text
        afterword.add(handle.folder, handle.job.launch, f"job.{interruption.why}", interruption.text)
        return "again"

    def _interruption(self, handle: JobHandle) -> Interruption | None:
        found = self._job.record.interruption
        return found if found is not None and found.launch == handle.job.launch else None

    def _check(self, handle: JobHandle, now: float) -> None:
        record = self._job.record
        ran_s = record.ran_s + now - self._counted_to
        if self._max_runtime_s and ran_s > self._max_runtime_s:
            text = f"The job ran longer than limits.max_runtime_s ({self._max_runtime_s:g} s) allows."
            self._interrupt(handle, "timeout", text)
            return
        if now - self._counted_to > _NOTE_S:
            self._count(now)
        self._check_progress(handle)

    def _check_progress(self, handle: JobHandle) -> None:
        assert self._dog is not None, "look made it"
        stall = self._dog.look()
        if stall is None or self._stalled:
            self._stalled = stall is not None
            return
        self._stalled = True
        self._job.add_warning(stall.sentence)
        if self._on_stall == "restart" and self._job.record.restarts < MAX_RESTARTS:
            self._interrupt(handle, "restarted", f"{stall.sentence} It is started again from its newest checkpoint.")
            self._job.note(restarts=self._job.record.restarts + 1)
        elif self._on_stall != "keep":
            self._interrupt(handle, "fail", stall.sentence)

    def _interrupt(self, handle: JobHandle, why: str, text: str) -> None:
        logger.warning("job(%s) is ended: %s", self._job.job_id, text)
        self._job.note(interruption=Interruption(launch=handle.job.launch, why=why, text=text))

    def _press(self, handle: JobHandle, now: float) -> None:
        """Bring about what was noted; again and again until the launch has ended."""
        interruption = self._interruption(handle)
        if interruption is None or now < self._next_kill:
            return
        if interruption.why == "timeout":
            handle.cancel()
        else:
            # A process that hangs hears no SIGTERM.
            self._next_kill = now + _KILL_AGAIN_S
            handle.kill()

    def _count(self, now: float) -> None:
        since, self._counted_to = self._counted_to, now
        self._job.note(ran_s=self._job.record.ran_s + max(0.0, now - since))
