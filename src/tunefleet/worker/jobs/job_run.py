"""From an acknowledged attempt to the end of its job: prepare, launch or adopt, watch, cancel, suspend."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from tunefleet.errors import MachineError, TunefleetError
from tunefleet.executors.base import JobExecutor
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime.gpu.gpus import GpuBusyError
from tunefleet.runtime.launch import retry
from tunefleet.runtime.monitor.elapsed_time import Watched
from tunefleet.runtime.monitor.eviction import MakingWay
from tunefleet.runtime.monitor.guard import End, Guard
from tunefleet.runtime.tracing import AttemptTrace
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.worker_link import FinishOutcome, Reached
from tunefleet.worker.context import Site
from tunefleet.worker.interfaces import Delivery, Handle
from tunefleet.worker.jobs.command_dispatch import Steering
from tunefleet.worker.jobs.job_end import Ending
from tunefleet.worker.jobs.job_parts import Parts
from tunefleet.worker.jobs.preparation import Preparation
from tunefleet.worker.machine.rendezvous import is_member
from tunefleet.worker.mailbox import Cancelled, Mailbox
from tunefleet.worker.state import AttemptRecord

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.1
_SUSPEND_GRACE_S: Final = 5.0
_GPU_PATIENCE_S: Final = 60.0
"""How long a GPU is waited for that another job of ours holds."""
_BUSY_PAUSE_S: Final = 5.0

# Ends that say nothing of the task if the machine was rebooted meanwhile.
_UNTOLD: Final = frozenset({TaskReason.KILLED, TaskReason.CRASHED})
# Ends that the job came to by itself, or as it was asked.
_SETTLED: Final = frozenset({"completed", "paused"})


@dataclass(frozen=True, slots=True)
class PausedEnd:
    """The end of a job that is paused where its newest checkpoint is."""

    outcome: FinishOutcome = "paused"
    reason: TaskReason = TaskReason.PAUSED
    error: str | None = None
    detail: str | None = None


class PausedFirst(Exception):
    """The server wants a pause of an attempt whose job was not started."""


class CannotGoOn(Exception):
    """It is not launched here: a node of a gang that has ended in between, or a machine that is taken away soon."""


class JobRun:
    """The job of one attempt."""

    def __init__(
        self,
        site: Site,
        record: AttemptRecord,
        *,
        executor: JobExecutor,
        mailbox: Mailbox,
        delivery: Delivery,
        parts: Parts,
        found: Handle | None,
    ) -> None:
        self._site = site
        self._parts = parts
        self._trace = AttemptTrace(record.offer, site.spans, site.worker_id)
        self._mailbox = mailbox
        self._ending = Ending(site, record.offer.task_id)
        self._preparation = Preparation(site, executor, mailbox, delivery)
        self.record = record
        self.handle = found
        self._cancelled_at: float | None = None
        self._timed_out = False
        self._steering = Steering(site.outbox, mailbox, lambda: self.record, self._note)
        self._leaving = Leaving(mailbox, leads=not is_member(record.offer))
        self._guard = Guard(
            record.offer.spec,
            self,
            sentry=site.sentry,
            makes_way=site.makes_way,
            on_stall_change=lambda for_s, _: site.outbox.stalled(record.offer.token, for_s),
        )

    @property
    def cancelled(self) -> bool:
        """Whether the server asked for the end."""
        return self.record.cancel_generation is not None

    @property
    def timed_out(self) -> bool:
        """Whether the job was ended because it ran longer than its spec allows."""
        return self._timed_out

    def begin(self) -> Handle:
        """Adopt the attempt's job if it lives or has ended unread; else launch it.

        Raises:
            TunefleetError: If it cannot be started; the message is for the user.
            Cancelled: If the server asked for the end before.
            PausedFirst: If it asked for a pause before.
        """
        found = self._adoptable()
        if found is not None:
            logger.info("Adopted the job of task %s.", self.record.offer.task_id)
            return found
        if self._in_gang and self.record.launch is not None:
            raise CannotGoOn("Its worker was started anew, and a node cannot go on without the others.")
        self._raise_leaving()
        self.handle = self._launch_when_free(_GPU_PATIENCE_S)
        return self.handle

    def meet(self, point: str) -> None:
        """Write down where the gang meets."""
        self._note(point=point)

    @property
    def _in_gang(self) -> bool:
        return self.record.offer.gang is not None

    def watch(self, handle: Handle) -> End:
        """Wait for the job's end, doing meanwhile what the server and the worker's owner want.

        Raises:
            Dropped: If the token became void; the job may still live.
            Stopped: If the worker goes; the job lives.
        """
        while True:
            end = handle.poll()
            if end is None and self._pauses_before_it_trains(handle):
                self._note(suspended=True)  # of a worker that is killed now, the next one knows why the job has ended
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
                # Whatever interrupted it, only all nodes together can be launched again.
                self._steering.last_look(handle)
                return end
            if self._cut_off_pausing and end.outcome not in _SETTLED:
                return PausedEnd()
            verdict = end if self.cancelled or self._timed_out else self._guard.verdict(handle, end)
            final = verdict is not None and not self._second_try(handle, verdict)
            again = None if final else self._launch_again(handle, end)
            if again is None:
                self._steering.last_look(handle)
                if not final and self._pause_wanted and not self._unwanted:
                    return PausedEnd()
                if not final and self._leaving.wanted and not self._unwanted and not self._stays_paused(end):
                    return LeftEnd()
                return verdict if final and verdict is not None else end
            self._steering.launched_again()
            self.handle = handle = again

    def _while_it_runs(self, handle: Handle) -> None:
        self._obey(handle)
        self._leaving.push(handle)
        if not is_member(self.record.offer):
            self._guard.look(handle)
        self._mailbox.pause(_POLL_S)

    def _pauses_before_it_trains(self, handle: Handle) -> bool:
        """Whether a pause is wanted of a job that still loads: that may take minutes, and leaves nothing to save."""
        if not self._pause_wanted or self._in_gang or self._unwanted:
            return False
        status = handle.status()
        return status is None or status.state == "starting"

    @property
    def watched(self) -> Watched:
        """What the guard has written down."""
        return self.record.watched

    def note_watched(self, watched: Watched) -> None:
        """Write down what the guard must not forget."""
        self._note(watched=watched)

    def suspend(self) -> None:
        """End the job, if it lives, so that the next worker launches it again: note it, save if that is quick, end."""
        handle = self.handle
        if handle is None or handle.poll() is not None:
            return
        self._note(suspended=True)
        logger.info("Suspending task %s.", self.record.offer.task_id)
        self._ending.save(handle, f"suspend-{self.record.launch}")
        self.end(handle, grace_s=_SUSPEND_GRACE_S)

    def end(self, handle: Handle, *, grace_s: float) -> None:
        """End the job and wait until it is gone; whatever it leaves is not read."""
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
        # Who was asked to pause and has done so has paused, whatever the worker was about to do with it.
        if end is not None and end.outcome not in _SETTLED and not self._cut_off_pausing:
            if not self.record.suspended and self._guard.interrupted(handle) is not None:
                return handle  # `watch` knows what its end means
            untold = self.record.suspended or (self._guard.rebooted and end.reason in _UNTOLD)
            return None if untold else handle
        return handle

    @property
    def _cut_off_pausing(self) -> bool:
        """Whether the worker ended the job in the middle of a pause: a launch would only train for the next pause."""
        pausing = any(command.command == ControlCommand.PAUSE for command in self.record.commands)
        return self.record.suspended and pausing

    def _second_try(self, handle: Handle, end: End) -> bool:
        """Tell whether the failed job is launched again within the attempt, changed so that it may do better."""
        if end.outcome != "failed" or self.cancelled or self._timed_out:
            return False
        try:
            change = retry.plan(handle.folder, self.record.offer.spec, end.reason, handle.job.launch)
        except (OSError, TunefleetError) as error:
            logger.warning("Task %s gets no second try: %s", self.record.offer.task_id, error)
            return False
        if change is not None:
            logger.info("Task %s: %s", self.record.offer.task_id, change)
        return change is not None

    def _launch_again(self, handle: Handle, end: End) -> Handle | None:
        """Launch again after the worker has interrupted the job, when there is room; None if nobody wants that."""
        while True:
            self.heed_cancel()
            if self._leaving.wanted:
                return None
            if self._unwanted or self._stays_paused(end):
                return None
            if self._guard.room(handle):
                try:
                    return self._launch_when_free(_BUSY_PAUSE_S)
                except (Cancelled, PausedFirst, CannotGoOn):
                    return None
                except GpuBusyError as error:
                    logger.info("Task %s waits: %s", self.record.offer.task_id, error)
            self._mailbox.pause(_POLL_S)

    def _stays_paused(self, end: End) -> bool:
        """Whether it has paused as the server wants it."""
        return end.outcome == "paused" and self._pause_wanted

    def _launch_when_free(self, patience_s: float) -> Handle:
        """Launch; a GPU that another job of ours holds is waited for a while, since that job may just be ending."""
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
        job = job.model_copy(update={"merge_children": self._parts.prepare(self._raise_unwanted), "env": env})
        self._note(launch=job.launch, suspended=False, watched=self._guard.started())
        return self._site.jobs.launch(job)

    @property
    def _unwanted(self) -> bool:
        """Whether nobody waits for what the job computes: its own task is cancelled, and none goes along."""
        return self.cancelled and not self._parts.wanted

    def _raise_cancel(self) -> None:
        self.heed_cancel()
        if self._unwanted:
            raise Cancelled
        self._raise_leaving()

    def _raise_unwanted(self) -> None:
        self._raise_cancel()
        if self._pause_wanted:
            raise PausedFirst

    @property
    def _pause_wanted(self) -> bool:
        desired = self._mailbox.desired
        return desired is not None and desired.action == "pause"

    def _raise_leaving(self) -> None:
        if self._leaving.wanted:
            raise CannotGoOn("Its machine is taken away before it was launched.")

    def _obey(self, handle: Handle) -> None:
        self.heed_cancel()
        if self._unwanted and self._cancelled_at is None and self._ending.ask(handle, self.record.offer.grace_s):
            self._cancelled_at = time.monotonic()
            logger.info("Cancelling task %s.", self.record.offer.task_id)
        # Of several nodes the first one's time counts.
        if not self._timed_out and self._guard.overdue and not is_member(self.record.offer):
            self._timed_out = self._ending.ask(handle, self.record.offer.grace_s)
        self._steering.obey(handle)

    def heed_cancel(self) -> None:
        """Write down that the server wants the end, if it does, and say that this is known.

        Called by the attempt's thread until the job is over, later by whoever hears of the wish.
        """
        desired = self._mailbox.desired
        if desired is None or desired.action != "cancel" or self.cancelled:
            return
        try:
            self._note(cancel_generation=desired.generation)
        except MachineError as error:
            # After a crash the server says it again; a full disk is no reason to go on with what nobody wants.
            logger.warning("%s", error)
            self.record = self.record.model_copy(update={"cancel_generation": desired.generation})
        self._site.outbox.reach(Reached(token=self.record.offer.token, generation=desired.generation))

    def _note(self, **changes: object) -> None:
        record = self.record.model_copy(update=changes)
        try:
            self._site.state.keep(record)
        except OSError as error:
            raise MachineError(
                f"The results folder {self._site.results_dir} cannot be written: {error.strerror or error}.",
                hint="Free space on the worker's disk or mend the folder's permissions.",
            ) from error
        self.record = record


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
