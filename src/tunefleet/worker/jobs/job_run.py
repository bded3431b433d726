"""The job of one attempt, from the acknowledged accept to its end: prepare, launch or adopt, watch, cancel, suspend."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from tunefleet.errors import MachineError
from tunefleet.executors.base import JobExecutor
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime.gpu.gpu_locks import GpuBusyError
from tunefleet.runtime.monitor.elapsed_time import Watched
from tunefleet.runtime.monitor.guard import End, JobMonitor
from tunefleet.runtime.monitor.preemption import LaunchPreemption
from tunefleet.runtime.tracing import AttemptTrace
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.worker_link import FinishOutcome, Reached
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.interfaces import Delivery, Handle
from tunefleet.worker.jobs.command_dispatch import JobTerminator, Steering
from tunefleet.worker.jobs.job_parts import CoalescedTasks
from tunefleet.worker.jobs.preparation import Preparation
from tunefleet.worker.machine.rendezvous import is_member
from tunefleet.worker.mailbox import Cancelled, Mailbox
from tunefleet.worker.state import AttemptRecord

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.1
_SUSPEND_GRACE_S: Final = 5.0
# How long to wait for a GPU that another job of this machine holds.
_GPU_PATIENCE_S: Final = 60.0
_BUSY_PAUSE_S: Final = 5.0

# Regular ends, including a requested pause.
_SETTLED: Final = frozenset({"completed", "paused"})
# Ends of a preempted job: paused at a checkpoint, or killed while there was nothing to save.
_MADE_WAY: Final = frozenset(
    {("paused", TaskReason.PAUSED), ("failed", TaskReason.KILLED), ("failed", TaskReason.CRASHED)}
)


@dataclass(frozen=True, slots=True)
class PausedEnd:
    """The end of a job that is paused at its newest checkpoint."""

    outcome: FinishOutcome = "paused"
    reason: TaskReason = TaskReason.PAUSED
    error: str | None = None
    detail: str | None = None


class PausedBeforeLaunch(Exception):
    """The server requested a pause before the job was started."""


class NotLaunched(Exception):
    """The job is not launched: a node of an interrupted gang, or a machine that is being preempted."""


class JobRun:
    """The job of one attempt."""

    def __init__(
        self,
        worker_context: WorkerContext,
        record: AttemptRecord,
        *,
        executor: JobExecutor,
        mailbox: Mailbox,
        delivery: Delivery,
        parts: CoalescedTasks,
        found: Handle | None,
    ) -> None:
        self._context = worker_context
        self._parts = parts
        self._trace = AttemptTrace(record.offer, worker_context.spans, worker_context.worker_id)
        self._mailbox = mailbox
        self._ending = JobTerminator(worker_context, record.offer.task_id)
        self._preparation = Preparation(worker_context, executor, mailbox, delivery)
        self.record = record
        self.handle = found
        self._cancelled_at: float | None = None
        self._timed_out = False
        self._steering = Steering(worker_context.outbox, mailbox, lambda: self.record, self._note)
        self._leaving = WorkerPreemption(mailbox, leads=not is_member(record.offer))
        self._monitor = JobMonitor(
            record.offer.spec,
            self,
            gpu_monitor=worker_context.gpu_monitor,
            makes_way=worker_context.makes_way,
            on_stall_change=lambda for_s, _: worker_context.outbox.stalled(record.offer.token, for_s),
        )

    @property
    def cancelled(self) -> bool:
        """Whether the server requested a cancel."""
        return self.record.cancel_generation is not None

    @property
    def timed_out(self) -> bool:
        """Whether the job was ended because it exceeded its maximum runtime."""
        return self._timed_out

    def begin(self) -> Handle:
        """Adopt the attempt's job if it runs or its end is unread; otherwise launch it.

        Raises:
            TunefleetError: If it cannot be started; the message is for the user.
            Cancelled: If the server requested a cancel before.
            PausedBeforeLaunch: If the server requested a pause before.
        """
        adopted = self._adoptable()
        if adopted is not None:
            logger.info("Adopted the job of task %s.", self.record.offer.task_id)
            return adopted
        if self._in_gang and self.record.launch is not None:
            raise NotLaunched("Its worker restarted, and a node cannot continue without the others.")
        self._raise_leaving()
        self.handle = self._launch_when_free(_GPU_PATIENCE_S)
        return self.handle

    def meet(self, point: str) -> None:
        """Store the rendezvous endpoint of the gang."""
        self._note(point=point)

    @property
    def _in_gang(self) -> bool:
        return self.record.offer.gang is not None

    def watch(self, handle: Handle) -> End:
        """Wait for the job's end; apply commands and preemption meanwhile.

        Raises:
            Dropped: If the token became void; the job may still run.
            Stopped: If the worker stops; the job keeps running.
        """
        while True:
            end = handle.poll()
            if end is None and self._pauses_before_it_trains(handle):
                self._note(suspended=True)  # if the worker is killed now, the next one knows why the job has ended
                self.end(handle, grace_s=_SUSPEND_GRACE_S)
                return PausedEnd()
            if end is None:
                self._while_it_runs(handle)
                continue
            self._trace.launched(
                handle.job.launch, handle.folder.journal_dir / f"{handle.job.launch}.jsonl", end.outcome, end.error
            )
            if not self.cancelled and (left := self._leaving.left(end)) is not None:
                self._steering.last_look(handle)
                return left
            if self._in_gang:
                # Not relaunched here, whatever interrupted it: a gang is only launched again with all its nodes.
                self._steering.last_look(handle)
                return end
            if self._cut_off_pausing and end.outcome not in _SETTLED:
                return PausedEnd()
            verdict = end if self.cancelled or self._timed_out else self._monitor.interpret(handle, end)
            final = verdict is not None and not self._should_relaunch(handle, verdict)
            again = None if final else self._launch_again(handle, end)
            if again is None:
                self._steering.last_look(handle)
                if not final and self._pause_wanted and not self._unwanted:
                    return PausedEnd()
                if not final and self._leaving.wanted and not self._unwanted and not self._stays_paused(end):
                    return PreemptedEnd()
                return verdict if final and verdict is not None else end
            self._steering.launched_again()
            self.handle = handle = again

    def _while_it_runs(self, handle: Handle) -> None:
        self._obey(handle)
        self._leaving.advance(handle)
        if not is_member(self.record.offer):
            self._monitor.look(handle)
        self._mailbox.pause(_POLL_S)

    def _pauses_before_it_trains(self, handle: Handle) -> bool:
        """Whether a pause is requested while the job still loads."""
        if not self._pause_wanted or self._in_gang or self._unwanted:
            return False
        # Loading may take minutes, and there is nothing to save yet: the job is ended instead of paused.
        status = handle.status()
        return status is None or status.state == "starting"

    @property
    def watched(self) -> Watched:
        """The stored state of the monitor."""
        return self.record.watched

    def note_watched(self, watched: Watched) -> None:
        """Store the state of the monitor."""
        self._note(watched=watched)

    def suspend(self) -> None:
        """End a running job so that the next worker launches it again, with a checkpoint first if that is quick."""
        handle = self.handle
        if handle is None or handle.poll() is not None:
            return
        # First of all: should the worker be killed from here on, the next one must not take the end for a failure.
        self._note(suspended=True)
        logger.info("Suspending task %s.", self.record.offer.task_id)
        self._ending.save(handle, f"suspend-{self.record.launch}")
        self.end(handle, grace_s=_SUSPEND_GRACE_S)

    def end(self, handle: Handle, *, grace_s: float) -> None:
        """End the job and wait until it is gone; its results are not read."""
        self._ending.end(handle, grace_s=grace_s)

    def _adoptable(self) -> Handle | None:
        handle = self.handle
        if handle is None:
            return None
        end = handle.poll()
        if end is None and self.record.suspended:
            # The worker was killed while it suspended the job.
            self.end(handle, grace_s=_SUSPEND_GRACE_S)
            end = handle.poll()
        # A job that has paused as requested counts as paused, even if the worker was suspending it.
        if end is not None and end.outcome not in _SETTLED and not self._cut_off_pausing:
            if not self.record.suspended and self._monitor.interrupted(handle) is not None:
                return handle  # `watch` interprets its end
            untold = self.record.suspended or self._monitor.ended_by_reboot(end)
            return None if untold else handle
        return handle

    @property
    def _cut_off_pausing(self) -> bool:
        """Whether the worker ended the job during a pause: after a relaunch it would only pause again."""
        pausing = any(command.command == ControlCommand.PAUSE for command in self.record.commands)
        return self.record.suspended and pausing

    def _should_relaunch(self, handle: Handle, end: End) -> bool:
        """Return whether the failed job is relaunched within the attempt, with changed settings."""
        change = None if self.cancelled or self._timed_out else self._monitor.plan_relaunch(handle, end)
        if change is not None:
            logger.info("Task %s: %s", self.record.offer.task_id, change)
        return change is not None

    def _launch_again(self, handle: Handle, end: End) -> Handle | None:
        """Relaunch a job that the worker has interrupted, once a GPU is free; None if it is no longer wanted."""
        while True:
            self.store_cancel()
            if self._leaving.wanted:
                return None
            if self._unwanted or self._stays_paused(end):
                return None
            if self._monitor.may_relaunch(handle):
                try:
                    return self._launch_when_free(_BUSY_PAUSE_S)
                except (Cancelled, PausedBeforeLaunch, NotLaunched):
                    return None
                except GpuBusyError as error:
                    logger.info("Task %s waits: %s", self.record.offer.task_id, error)
            self._mailbox.pause(_POLL_S)

    def _stays_paused(self, end: End) -> bool:
        """Whether it has paused as the server requested."""
        return end.outcome == "paused" and self._pause_wanted

    def _launch_when_free(self, patience_s: float) -> Handle:
        """Launch, and wait for a GPU that another job of this machine holds."""
        # The job that holds it may just be ending.
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return self._launch()
            except GpuBusyError:
                if time.monotonic() > deadline:
                    raise
                self._mailbox.pause(1.0)

    def _launch(self) -> Handle:
        again = self.record.launch is not None
        with self._trace.timed("prepare", self.record.launch or ""):
            job = self._preparation.job(
                self.record.offer, again=again, check=self._raise_unwanted, point=self.record.point
            )
        env = job.env | self._trace.environment(job.launch)
        children = self._parts.prepare(self._raise_unwanted)
        job = job.model_copy(update={"merge_children": children, "env": env, "prepared_at": time.time()})
        # Before the launch: a worker that is killed in between adopts the job by this id, and starts no second one.
        self._note(launch=job.launch, suspended=False, watched=self._monitor.started())
        return self._context.jobs.launch(job)

    @property
    def _unwanted(self) -> bool:
        """Whether the job's results are unwanted: its own task is cancelled, and no coalesced task is left."""
        return self.cancelled and not self._parts.wanted

    def _raise_cancel(self) -> None:
        self.store_cancel()
        if self._unwanted:
            raise Cancelled
        self._raise_leaving()

    def _raise_unwanted(self) -> None:
        self._raise_cancel()
        if self._pause_wanted:
            raise PausedBeforeLaunch

    @property
    def _pause_wanted(self) -> bool:
        desired = self._mailbox.desired
        return desired is not None and desired.action == "pause"

    def _raise_leaving(self) -> None:
        if self._leaving.wanted:
            raise NotLaunched("Its machine was preempted before the launch.")

    def _obey(self, handle: Handle) -> None:
        self.store_cancel()
        if self._unwanted and self._cancelled_at is None and self._ending.ask(handle, self.record.offer.grace_s):
            self._cancelled_at = time.monotonic()
            logger.info("Cancelling task %s.", self.record.offer.task_id)
        # In a gang, only the first node enforces the maximum runtime.
        if not self._timed_out and self._monitor.overdue and not is_member(self.record.offer):
            self._timed_out = self._ending.ask(handle, self.record.offer.grace_s)
        self._steering.obey(handle)

    def store_cancel(self) -> None:
        """Store and confirm a cancel, if the server requested one.

        Called by the attempt's thread while the job runs, later by the thread that receives the request.
        """
        desired = self._mailbox.desired
        if desired is None or desired.action != "cancel" or self.cancelled:
            return
        try:
            self._note(cancel_generation=desired.generation)
        except MachineError as error:
            # A cancel must work on a full disk too; after a crash the server repeats it.
            logger.warning("%s", error)
            self.record = self.record.model_copy(update={"cancel_generation": desired.generation})
        self._context.outbox.reach(Reached(token=self.record.offer.token, generation=desired.generation))

    def _note(self, **changes: object) -> None:
        record = self.record.model_copy(update=changes)
        try:
            self._context.state.keep(record)
        except OSError as error:
            raise MachineError(
                f"The results folder {self._context.results_dir} cannot be written: {error.strerror or error}.",
                hint="Free space on the worker's disk, or fix the folder's permissions.",
            ) from error
        self.record = record


@dataclass(frozen=True, slots=True)
class PreemptedEnd:
    """The end of a preempted job; the task resumes elsewhere from its newest checkpoint."""

    outcome: FinishOutcome = "released"
    reason: TaskReason = TaskReason.RELEASED
    error: str | None = None
    detail: str | None = None


class WorkerPreemption:
    """Preempts the launches of one job once the worker is being preempted."""

    def __init__(self, mailbox: Mailbox, *, leads: bool) -> None:
        self._mailbox = mailbox
        self._leads = leads
        self._way: LaunchPreemption | None = None

    @property
    def wanted(self) -> bool:
        """Whether the machine is being preempted."""
        return self._mailbox.makes_way

    def advance(self, handle: Handle) -> None:
        """Advance the preemption of a running launch."""
        if self.wanted and self._leads:
            self._way = self._way or LaunchPreemption(handle)
            self._way.advance()

    def left(self, end: End) -> PreemptedEnd | None:
        """Return the end of a preempted launch; None if it has ended regularly, or is to continue."""
        preempted = self._way is not None or (
            # Some systems signal every process on the machine: the launch is gone before the worker could pause it.
            self.wanted and self._leads and end.reason == TaskReason.KILLED
        )
        return PreemptedEnd() if preempted and (end.outcome, end.reason) in _MADE_WAY else None
