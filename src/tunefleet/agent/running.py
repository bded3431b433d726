"""From the head of the queue to the end of the process: prepare, launch or adopt, obey, note the end.

Every step is on disk before its effect, so the agent may be killed anywhere and the next one goes on from the record.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from tunefleet.agent.guard import Guard
from tunefleet.agent.job import AgentJob
from tunefleet.agent.preparing import prepare
from tunefleet.agent.site import Site
from tunefleet.agent.steering import GRACE_S, Steering
from tunefleet.errors import InputError, MachineError, TunefleetError
from tunefleet.executors.base import JobExecutor
from tunefleet.jobs import JobHandle, afterword, new_launch_id, second_try
from tunefleet.jobs.boot import boot_name
from tunefleet.jobs.classify import JobEnd
from tunefleet.jobs.makeway import MakingWay
from tunefleet.lifecycle.task import TaskReason
from tunefleet.wire.jobfolder import Job
from tunefleet.wire.training import JobState

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.1
_GPU_PAUSE_S: Final = 2.0
_STATES: Final = {
    "completed": JobState.COMPLETED,
    "paused": JobState.PAUSED,
    "cancelled": JobState.CANCELLED,
    "failed": JobState.FAILED,
}
_UNTOLD: Final = frozenset({TaskReason.KILLED, TaskReason.CRASHED})
"""Ends that say nothing of the job if the machine was restarted meanwhile."""


class Left(Exception):
    """The agent goes; the job stays as it is."""


class Cancelled(Exception):
    """The job is not wanted any more, before its process was started."""


class JobRun:
    """Runs one job; `run` is the body of its thread.

    Args:
        site: Collaborators.
        job: The job.
        stopping: Set when the agent goes.
    """

    def __init__(self, site: Site, job: AgentJob, stopping: threading.Event) -> None:
        self._site = site
        self._job = job
        self._stopping = stopping
        self._guard = Guard(job)
        self._steering = Steering(job)
        self._way: MakingWay | None = None

    def run(self) -> None:
        """Run the job to its end, or until the agent goes."""
        job = self._job
        try:
            handle = self._handle()
            while (end := self._settled(handle, self._watch(handle))) is None:
                handle = self._job.handle = self._launch()
            self._note_end(end)
        except Left:
            return
        except Cancelled:
            job.note(state=JobState.CANCELLED, completed_at=time.time(), wish=None)
        except (TunefleetError, OSError) as error:
            logger.warning("job(%s) cannot run: %s", job.job_id, error)
            self._fail(str(error))
        except Exception as error:
            logger.exception("job(%s) failed in the agent itself.", job.job_id)
            self._fail(f"The agent failed: {type(error).__name__}: {error}")
        finally:
            job.phase = None

    def _handle(self) -> JobHandle:
        found = self._job.handle
        if found is not None and found.job.launch == self._job.record.launch:
            end = found.poll()
            if end is not None and self._made_way(found, end):
                logger.info("job(%s) goes on: it had made way.", self._job.job_id)
            elif end is None or not (self._rebooted() and end.reason in _UNTOLD):
                logger.info("job(%s) is adopted.", self._job.job_id)
                return found
            else:
                logger.info("job(%s) goes on: the machine was restarted.", self._job.job_id)
        self._job.handle = self._launch()
        return self._job.handle

    def _launch(self) -> JobHandle:
        job = self._job
        job.note(state=JobState.RUNNING, started_at=job.record.started_at or time.time(), completed_at=None)
        prepare(self._site, job, self._heed_cancel)
        record = job.record
        executor = self._site.registry.find(record.kind)
        if not isinstance(executor, JobExecutor):
            raise InputError(f"This machine has no executor for {record.kind} tasks.")
        reason = executor.unavailable_reason()
        if reason is not None:
            raise MachineError(reason)
        launch = new_launch_id()
        work = executor.job(job.offer(), launch=launch, inputs=record.inputs)
        work = work.model_copy(update={"gpus": self._gpus(), "from_step": record.from_step})
        work = work.model_copy(update={"env": self._environment(work)})
        self._heed_cancel()
        job.note(launch=launch, boot=boot_name())
        job.phase = "starting"
        handle = self._site.jobs.launch(work)
        job.phase = None
        # It is for this launch alone; when the machine restarts, the newest checkpoint counts.
        job.note(from_step=None)
        job.say_warnings()
        return handle

    def _gpus(self) -> tuple[str, ...]:
        """Return the job's GPUs, once they are free."""
        while True:
            self._heed_cancel()
            try:
                return self._site.gpus(self._job.record.spec)
            except MachineError as error:
                if self._job.phase != "waiting for a GPU":
                    logger.info("job(%s) waits: %s", self._job.job_id, error)
                self._job.phase = "waiting for a GPU"
            self._stopping.wait(_GPU_PAUSE_S)

    def _environment(self, work: Job) -> dict[str, str]:
        fraction = self._site.settings.gpu_memory_fraction
        return {
            **self._site.env,
            **({"TUNEFLEET_GPU_MEMORY_FRACTION": f"{fraction:g}"} if work.gpus else {}),
            **work.env,
        }

    def _settled(self, handle: JobHandle, end: JobEnd) -> JobEnd | None:
        """Return how the job has ended; None if the agent ended this launch so that another one goes on."""
        verdict = self._guard.verdict(handle, end)
        if verdict is None:
            return None if self._second_try(handle, end) else end
        if verdict == "again":
            return None if self._job.record.wish is None else end
        return end.model_copy(update={"outcome": "failed", "error": verdict})

    def _second_try(self, handle: JobHandle, end: JobEnd) -> bool:
        """Tell whether the failed job is launched again, changed so that it may do better."""
        record = self._job.record
        if end.outcome != "failed" or record.wish is not None:
            return False
        try:
            change = second_try.plan(handle.folder, record.spec, end.reason, handle.job.launch)
        except (OSError, TunefleetError) as error:
            logger.warning("job(%s) gets no second try: %s", record.job_id, error)
            return False
        if change is not None:
            self._job.add_warning(change)
        return change is not None

    def _watch(self, handle: JobHandle) -> JobEnd:
        while True:
            end = handle.poll()
            if end is not None:
                if not self._made_way(handle, end):
                    return end
                # It waits until the GPU was quiet for a while.
                handle = self._job.handle = self._launch()
            if self._stopping.is_set():
                raise Left
            self._steering.obey(handle)
            self._make_way(handle)
            self._job.changed.wait(_POLL_S)
            self._job.changed.clear()

    def _make_way(self, handle: JobHandle) -> None:
        """Pause the job, without telling it paused, when somebody else uses its GPU; written down first."""
        sentry = self._site.sentry
        if self._job.record.yields != handle.job.launch:
            heeded = sentry is not None and self._site.settings.yielding == "pause"
            who = sentry.intruder(handle.job.gpus) if sentry is not None and heeded else None
            if who is None:
                return
            logger.info("job(%s) makes way for %s.", self._job.job_id, who)
            self._job.note(yields=handle.job.launch)
            self._way = None
        self._way = self._way or MakingWay(handle)
        self._way.push()

    def _made_way(self, handle: JobHandle, end: JobEnd) -> bool:
        """Tell whether an end was brought about by `_make_way`, and nobody wants the job to end or to stay paused."""
        record = self._job.record
        ours = end.outcome == "paused" or end.reason is TaskReason.KILLED
        if record.yields != handle.job.launch or record.wish is not None or not ours:
            return False
        words = "The job makes way for somebody else on its GPU; it goes on when that is free again."
        afterword.add(handle.folder, handle.job.launch, "job.yielded", words, phase="yielded")
        return True

    def _heed_cancel(self) -> None:
        if self._stopping.is_set():
            raise Left
        if self._job.record.wish == "cancel":
            raise Cancelled

    def _note_end(self, end: JobEnd) -> None:
        job = self._job
        state = _STATES[end.outcome]
        if job.record.wish == "cancel" and state is not JobState.COMPLETED:
            state = JobState.CANCELLED
        if state is JobState.COMPLETED:
            job.link_final()
        error = end.error if state is JobState.FAILED else None
        ended = time.time() if state.final else None
        job.note(state=state, wish=None, completed_at=ended, error=error, detail=end.detail)
        if job.handle is not None:
            job.handle.acknowledge()
        logger.info("job(%s) is %s%s", job.job_id, state, f": {error}" if error else ".")

    def _fail(self, error: str) -> None:
        handle = self._job.handle
        if handle is not None and handle.job.launch == self._job.record.launch and handle.poll() is None:
            handle.cancel(GRACE_S)
            handle.wait(GRACE_S + 20)
        try:
            self._job.note(state=JobState.FAILED, wish=None, completed_at=time.time(), error=error)
        except OSError:
            logger.exception("The end of job(%s) cannot be noted.", self._job.job_id)

    def _rebooted(self) -> bool:
        return self._job.record.boot not in (None, boot_name())
