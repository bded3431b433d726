"""Monitors a job on a worker or agent: maximum runtime, stalls, and GPU contention.

The reason of an interruption is stored before the launch is ended, so that a restarted monitor continues it, and does
not take the end for a failure of the job.

The relaunch of a failed job keeps the attempt and its token. It is decided after all processes of the job are gone,
from the job folder and the end only, so that it does not matter how the process died. A smaller batch or a lower
learning rate is written to `overrides.json` before the launch, and applied by the program.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tunefleet.errors import TunefleetError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import exit_classification
from tunefleet.runtime.monitor.elapsed_time import Interruption, Runtime, Watched, boot_name
from tunefleet.runtime.monitor.preemption import GpuContentionMonitor, LaunchPreemption, Pausable
from tunefleet.runtime.monitor.stall_detector import Stall, StallDetector
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_link import FinishOutcome
from tunefleet.spec import ModelTrainingSpec, load_task_spec
from tunefleet.spec.options.policy import LimitsSpec
from tunefleet.trainer_control.files import read_json, write_json

logger = logging.getLogger(__name__)
# How often a stalled job is restarted before it fails.
MAX_RESTARTS: Final = 3
_CHECK_S: Final = 1.0
_KILL_INTERVAL_S: Final = 5.0
_REBOOT_REASONS: Final = frozenset({TaskReason.KILLED, TaskReason.CRASHED})
# (seconds without progress, message); (None, None) when the stall is over.
StallChange = Callable[[float | None, str | None], None]
_EVENTS: Final = {
    "restart": ("job.restarted", "{} Restarting from its newest checkpoint.", None),
    "yield": ("job.yielded", "Preempted by {}; resumes when the GPU is free.", "yielded"),
}
_KILLED: Final = frozenset({("failed", TaskReason.KILLED), ("failed", TaskReason.CRASHED)})
# Ends caused by an interruption; any other end is the job's own, which came first.
_OURS: Final[dict[str, frozenset[tuple[str, TaskReason]]]] = {
    "restart": _KILLED,
    "fail": _KILLED,
    "yield": _KILLED | {("paused", TaskReason.PAUSED)},
}
# How often a diverged training restarts with half the learning rate before it fails.
ROLLBACKS: Final = 3


class End(Protocol):
    """The end of a launch, such as a `JobEnd`."""

    @property
    def outcome(self) -> FinishOutcome:
        """Completed, failed, cancelled, paused or released."""

    @property
    def reason(self) -> TaskReason:
        """Reason of the end."""

    @property
    def error(self) -> str | None:
        """Error message, if it failed."""

    @property
    def detail(self) -> str | None:
        """The last traceback, if there is one."""


class Handle(Pausable, Protocol):
    """A monitored launch, such as a `JobHandle`."""

    @property
    def folder(self) -> JobFolder:
        """Its job folder."""


@dataclass(frozen=True, slots=True)
class StalledEnd:
    """The end of a stalled job."""

    error: str
    detail: str | None
    outcome: FinishOutcome = "failed"
    reason: TaskReason = TaskReason.STALLED


class MonitorStore(Protocol):
    """Storage of the monitor's state."""

    @property
    def watched(self) -> Watched:
        """The last stored state."""

    def note_watched(self, watched: Watched) -> None:
        """Store a state, with fsync."""


class JobMonitor:
    """Monitors the launches of one job, one after the other.

    Args:
        store: Storage of the state.
        gpu_monitor: Detects other users of the GPUs; None if contention is ignored.
        makes_way: Whether the job is preempted when another process uses its GPU.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        store: MonitorStore,
        *,
        gpu_monitor: GpuContentionMonitor | None = None,
        makes_way: bool = False,
        on_stall_change: StallChange = lambda _for_s, _message: None,
    ) -> None:
        limits = LimitsSpec.model_validate(spec.get("limits") or {})
        self._spec = spec
        self._store = store
        self._gpu_monitor = gpu_monitor
        self._makes_way = makes_way
        self._report_stall = on_stall_change
        self._on_stall: str = spec.get("on_stall") or "keep"
        self._stall_after_s = limits.stall_after_s
        self._runtime = Runtime(store.watched.clock, limits.max_runtime_s)
        self._launch: str | None = None
        self._stall_detector: StallDetector | None = None
        self._preemption: LaunchPreemption | None = None
        self._stall: Stall | None = None
        self._next_check = 0.0
        self._next_kill = 0.0

    @property
    def rebooted(self) -> bool:
        """Whether the machine was rebooted since the job's last launch."""
        boot = self._store.watched.clock.boot
        return boot is not None and boot != boot_name()

    @property
    def overdue(self) -> bool:
        """Whether the job has exceeded its maximum runtime."""
        return self._runtime.exceeded

    def ended_by_reboot(self, end: End) -> bool:
        """Whether a reboot of the machine ended the job, which is not the job's fault."""
        return self.rebooted and end.reason in _REBOOT_REASONS

    def plan_relaunch(self, handle: Handle, end: End) -> str | None:
        """Write changed settings with which a failed job may succeed; return a message, or None if the end is final."""
        if end.outcome != "failed":
            return None
        try:
            return retry_plan(handle.folder, self._spec, end.reason, handle.job.launch)
        except (OSError, TunefleetError) as error:
            logger.warning("job(%s) is not relaunched: %s", handle.job.job_id, error)
            return None

    def interrupted(self, handle: Handle) -> Interruption | None:
        """Return why the monitor has ended this launch, or is about to."""
        interruption = self._store.watched.interruption
        return interruption if interruption is not None and interruption.launch == handle.job.launch else None

    def started(self) -> Watched:
        """Return the state to store with a new launch."""
        return Watched(clock=self._runtime.start(), stall_restarts=self._store.watched.stall_restarts)

    def ended(self) -> Watched:
        """Return the state to store with the job's end."""
        return self._store.watched.model_copy(update={"clock": self._runtime.stop()})

    def look(self, handle: Handle) -> None:
        """Check a running launch; called several times a second, but does its work once a second."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_S
        self._begin(handle)
        if self._runtime.worth_noting:
            self._note(clock=self._runtime.start())
        interruption = self.interrupted(handle)
        if interruption is None:
            self._watch_progress(handle)
            interruption = self._watch_gpus(handle)
        if interruption is not None:
            self._carry_out(handle, interruption)

    def interpret(self, handle: Handle, end: End) -> End | None:
        """Interpret an end: returns the end to report, or None if the job is to be relaunched once a GPU is free."""
        clock = self._runtime.stop()
        self._report_stall(None, None)
        interruption = self.interrupted(handle)
        if interruption is None or (end.outcome, end.reason) not in _OURS[interruption.why]:
            return end
        self._note(clock=clock)
        if interruption.why == "fail":
            return StalledEnd(interruption.text, interruption.detail)
        name, template, phase = _EVENTS[interruption.why]
        exit_classification.add(
            handle.folder, interruption.launch, name, template.format(interruption.text), phase=phase
        )
        return None

    def may_relaunch(self, handle: Handle) -> bool:
        """Return whether an interrupted launch may be relaunched now."""
        interruption, gpu_monitor = self.interrupted(handle), self._gpu_monitor
        yielded = interruption is not None and interruption.why == "yield"
        return not yielded or gpu_monitor is None or gpu_monitor.unused(handle.job.gpus)

    def _begin(self, handle: Handle) -> None:
        if self._launch == handle.job.launch:
            return
        self._launch = handle.job.launch
        self._stall_detector = StallDetector(handle.folder, handle.job, self._stall_after_s)
        self._preemption = None
        self._stall = None
        self._next_kill = 0.0

    def _watch_progress(self, handle: Handle) -> None:
        assert self._stall_detector is not None, "_begin made it"
        before, self._stall = self._stall, self._stall_detector.look()
        if self._stall is None:
            if before is not None:
                self._report_stall(None, None)
            return
        if before is not None:
            return
        self._report_stall(self._stall_detector.silent_s, self._stall.sentence)
        if self._on_stall == "keep":
            return
        restarts = self._store.watched.stall_restarts
        text = self._stall.sentence
        again = self._on_stall == "restart" and restarts < MAX_RESTARTS
        if not again and self._on_stall == "restart":
            text = f"{text} It was restarted {restarts} times before."
        interruption = Interruption(
            launch=handle.job.launch,
            why="restart" if again else "fail",
            text=text,
            detail=self._stall.detail,
        )
        self._note(interruption=interruption, stall_restarts=restarts + again)

    def _watch_gpus(self, handle: Handle) -> Interruption | None:
        interruption = self.interrupted(handle)
        gpu_monitor = self._gpu_monitor
        user = gpu_monitor.other_user(handle.job.gpus) if gpu_monitor is not None and self._makes_way else None
        if interruption is not None or user is None:
            return interruption
        logger.info("Preempting job(%s) for %s", handle.job.job_id, user)
        interruption = Interruption(launch=handle.job.launch, why="yield", text=user)
        self._note(interruption=interruption)
        return interruption

    def _carry_out(self, handle: Handle, interruption: Interruption) -> None:
        """Carry out an interruption; called until the launch has ended."""
        if interruption.why == "yield":
            self._preemption = self._preemption or LaunchPreemption(handle)
            self._preemption.advance()
        elif time.monotonic() >= self._next_kill:
            # SIGKILL, since a process that hangs does not handle SIGTERM.
            self._next_kill = time.monotonic() + _KILL_INTERVAL_S
            logger.warning("Killing job(%s). %s", handle.job.job_id, interruption.text)
            handle.kill()

    def _note(self, **changes: object) -> None:
        self._store.note_watched(self._store.watched.model_copy(update=changes))


def retry_plan(folder: JobFolder, spec: Mapping[str, Any], reason: TaskReason, launch: str) -> str | None:
    """Write the changes for a relaunch, if one may succeed.

    Returns:
        A message about the changes; None if the end is final.

    Raises:
        OSError: If the change cannot be written.
    """
    if reason not in (TaskReason.OUT_OF_MEMORY, TaskReason.DIVERGED):
        return None
    task = load_task_spec(spec)
    if not isinstance(task, ModelTrainingSpec):
        return None
    now = read_json(folder.overrides_json) or {}
    if now.get("after") == launch:
        # A restart after the write must not halve the batch twice.
        return "The changes for the relaunch are already written."
    if reason is TaskReason.OUT_OF_MEMORY:
        changes, message = _smaller(task, now)
    else:
        changes, message = _slower(task, now)
    if changes:
        write_json(folder.overrides_json, {**now, **changes, "after": launch}, sync=True)
    return message if changes else None


def halved(batch: int, accumulation: int, least: int = 1) -> tuple[int, int] | None:
    """Return at most half the batch size, and more accumulation for the same product; None if it is too small."""
    rows = batch * accumulation
    smaller = next((size for size in range(batch // 2, least - 1, -1) if rows % size == 0), None)
    return None if smaller is None else (smaller, rows // smaller)


def _smaller(task: ModelTrainingSpec, now: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    training = task.training
    batch = int(now.get("batch_size") or training.batch_size)
    accumulation = int(now.get("gradient_accumulation_steps") or training.gradient_accumulation_steps)
    sizes = halved(batch, accumulation, task.smallest_batch) if task.on_oom == "halve_batch" else None
    if sizes is None:
        return {}, ""
    changes = dict(zip(("batch_size", "gradient_accumulation_steps"), sizes, strict=True))
    message = f"Out of memory with batch size {batch}: continuing with {sizes[0]} and {sizes[1]} accumulation steps."
    return changes, message


def _slower(task: ModelTrainingSpec, now: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    done = int(now.get("rollbacks") or 0)
    if task.on_nan != "rollback" or done >= ROLLBACKS:
        return {}, ""
    rate = float(now.get("learning_rate") or task.training.learning_rate) / 2
    message = f"Training diverged: resuming from the last good checkpoint with learning rate {rate:g}."
    return {"learning_rate": rate, "rollbacks": done + 1}, message
