"""Runs one job from the head of the queue to its end: prepare, launch or adopt, apply requests, store the end.

Every step is on disk before its effect, so that the next agent resumes from the record wherever this one was killed.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from tunefleet.agent.jobs.job import AgentJob, AgentRecord
from tunefleet.agent.jobs.job_context import AgentContext
from tunefleet.agent.jobs.job_inputs import prepare
from tunefleet.errors import ConflictError, InputError, MachineError, NotFoundError, TunefleetError
from tunefleet.executors.base import JobExecutor
from tunefleet.lifecycle.task import TaskReason
from tunefleet.observability import context
from tunefleet.runtime import JobHandle, new_launch_id
from tunefleet.runtime.exit_classification import JobEnd
from tunefleet.runtime.gpu.gpu_locks import GpuBusyError
from tunefleet.runtime.monitor.elapsed_time import Watched
from tunefleet.runtime.monitor.guard import End, JobMonitor
from tunefleet.runtime.monitor.journal_audit import losses
from tunefleet.runtime.tracing import AttemptTrace
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.job_folder import Job
from tunefleet.schemas.training_protocol.training import JobState

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.1
_GPU_PAUSE_S: Final = 2.0
_STATES: Final = {
    "completed": JobState.COMPLETED,
    "paused": JobState.PAUSED,
    "released": JobState.PAUSED,
    "cancelled": JobState.CANCELLED,
    "failed": JobState.FAILED,
}
# Grace period before SIGTERM.
GRACE_S: Final = 30.0
_CHECK_S: Final = 0.5


class AgentStopping(Exception):
    """The agent stops; the job is left as it is."""


class Cancelled(Exception):
    """The job was cancelled before its process was started."""


class JobRun:
    """Runs one job; `run` is the body of its thread."""

    def __init__(self, agent_context: AgentContext, job: AgentJob, stopping: threading.Event) -> None:
        self._context = agent_context
        self._job = job
        self._stopping = stopping
        self._monitor = JobMonitor(
            job.record.spec,
            self,
            gpu_monitor=agent_context.gpu_monitor,
            makes_way=agent_context.settings.yielding == "pause",
            on_stall_change=lambda _, message: job.add_warning(message) if message else None,
        )
        self._dispatcher = RequestDispatcher(job)
        self._trace = trace_of(agent_context, job)

    def run(self) -> None:
        """Run the job to its end, or until the agent stops."""
        with context.log_ids(job_id=self._job.job_id, trace_id=self._trace.trace_id):
            self._run()

    def _run(self) -> None:
        job = self._job
        try:
            handle = self._handle()
            while (end := self._final_end(handle, self._watch(handle))) is None:
                handle = self._job.handle = self._launch()
            self._note_end(end)
        except AgentStopping:
            return
        except Cancelled:
            job.note(state=JobState.CANCELLED, completed_at=time.time(), wish=None)
        except (TunefleetError, OSError) as error:
            logger.warning("job(%s) failed to start: %s", job.job_id, error)
            self._fail(str(error))
        except Exception as error:
            logger.exception("job(%s) failed with an unexpected error in the agent.", job.job_id)
            self._fail(f"Unexpected error in the agent: {type(error).__name__}: {error}")
        finally:
            job.phase = None
        export_job_span(self._context, job)

    @property
    def watched(self) -> Watched:
        """The stored state of the monitor."""
        return self._job.record.watched

    def note_watched(self, watched: Watched) -> None:
        """Store the state of the monitor."""
        self._job.note(watched=watched)

    def _handle(self) -> JobHandle:
        handle = self._job.handle
        if handle is not None and handle.job.launch == self._job.record.launch:
            end = handle.poll()
            by_reboot = end is not None and self._monitor.ended_by_reboot(end)
            if not by_reboot or self._monitor.interrupted(handle) is not None:
                logger.info("Adopted job(%s).", self._job.job_id)
                return handle  # `_final_end` interprets an end that the agent caused
            logger.info("Relaunching job(%s) after a reboot of the machine.", self._job.job_id)
        self._job.handle = self._launch()
        return self._job.handle

    def _launch(self) -> JobHandle:
        job = self._job
        job.note(state=JobState.RUNNING, started_at=job.record.started_at or time.time(), completed_at=None)
        # Keyed by time: after a pause, the same attempt is prepared again.
        with self._trace.timed("prepare", f"{job.record.attempt} {time.time()}"):
            prepare(self._context, job, self._check_cancel)
        record = job.record
        executor = self._context.registry.find(record.kind)
        if not isinstance(executor, JobExecutor):
            raise InputError(f"This machine has no executor for {record.kind} tasks.")
        reason = executor.unavailable_reason()
        if reason is not None:
            raise MachineError(reason)
        launch = new_launch_id()
        work = executor.job(job.offer(), launch=launch, inputs=record.inputs, gpus=self._gpus())
        work = work.model_copy(update={"from_step": record.from_step})
        work = work.model_copy(update={"env": self._environment(work)})
        self._check_cancel()
        job.note(launch=launch, watched=self._monitor.started())
        job.phase = "starting"
        handle = self._context.jobs.launch(work)
        job.phase = None
        # Only for this launch: after a reboot, the job resumes from its newest checkpoint.
        job.note(from_step=None)
        job.log_warnings()
        return handle

    def _gpus(self) -> tuple[str, ...]:
        """Allocate the job's GPUs, once they are free."""
        while True:
            self._check_cancel()
            try:
                return self._context.gpus(self._job.record.spec)
            except GpuBusyError as error:
                if self._job.phase != "waiting for a GPU":
                    logger.info("job(%s) is waiting for a GPU: %s", self._job.job_id, error)
                self._job.phase = "waiting for a GPU"
            self._stopping.wait(_GPU_PAUSE_S)

    def _environment(self, work: Job) -> dict[str, str]:
        fraction = self._context.settings.gpu_memory_fraction
        return {
            **self._context.env,
            **self._trace.environment(work.launch),
            **({"TUNEFLEET_GPU_MEMORY_FRACTION": f"{fraction:g}"} if work.gpus else {}),
            **work.env,
        }

    def _final_end(self, handle: JobHandle, end: JobEnd) -> End | None:
        """Return the end of the job; None if it is relaunched."""
        wish = self._job.record.wish
        if end.outcome == "cancelled" and self._monitor.overdue and wish != "cancel":
            limit_s = float(self._job.record.spec["limits"]["max_runtime_s"])
            error = f"The job ran longer than limits.max_runtime_s ({limit_s:g} s) allows."
            return end.model_copy(update={"outcome": "failed", "reason": TaskReason.TIMEOUT, "error": error})
        final = self._monitor.interpret(handle, end)
        if final is None:
            fulfilled = wish == "cancel" or (wish == "pause" and end.outcome == "paused")
            return end if fulfilled else None
        return None if self._should_relaunch(handle, final) else final

    def _should_relaunch(self, handle: JobHandle, end: End) -> bool:
        """Return whether the failed job is relaunched with changed settings."""
        change = self._monitor.plan_relaunch(handle, end) if self._job.record.wish is None else None
        if change is not None:
            self._job.add_warning(change)
        return change is not None

    def _watch(self, handle: JobHandle) -> JobEnd:
        while True:
            end = handle.poll()
            self._job.log_times.note(now=time.time())
            if end is not None:
                launch = handle.job.launch
                self._trace.launched(launch, handle.folder.journal_dir / f"{launch}.jsonl", end.outcome, end.error)
                return end
            if self._stopping.is_set():
                raise AgentStopping
            self._dispatcher.dispatch(handle)
            if self._monitor.overdue:
                handle.cancel(GRACE_S)
            self._monitor.look(handle)
            self._job.changed.wait(_POLL_S)
            self._job.changed.clear()

    def _check_cancel(self) -> None:
        if self._stopping.is_set():
            raise AgentStopping
        if self._job.record.wish == "cancel":
            raise Cancelled

    def _note_end(self, end: End) -> None:
        job = self._job
        state = _STATES[end.outcome]
        if job.record.wish == "cancel" and state is not JobState.COMPLETED:
            state = JobState.CANCELLED
        if state is JobState.COMPLETED:
            job.link_final()
        for message in losses(job.folder):
            job.add_warning(message)
        error = end.error if state is JobState.FAILED else None
        ended = time.time() if state.final else None
        watched = self._monitor.ended()
        job.note(state=state, wish=None, completed_at=ended, error=error, detail=end.detail, watched=watched)
        if job.handle is not None:
            # Only now: an end that is acknowledged but not stored would be lost.
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
            logger.exception("Could not store the end of job(%s).", self._job.job_id)


def with_trace(record: AgentRecord, asked_by: str | None, *, sends: bool) -> AgentRecord:
    """Return the record of a posted job with its trace context."""
    parent = context.read_traceparent(asked_by)
    if parent is None and not sends:
        return record
    own = context.of_task(record.job_id, parent).traceparent
    return record.model_copy(update={"traceparent": own, "asked_by": None if parent is None else parent.traceparent})


def trace_of(agent_context: AgentContext, job: AgentJob) -> AttemptTrace:
    """Return the trace of a job's attempt."""
    return AttemptTrace(job.offer(), agent_context.spans, agent_context.name)


def export_job_span(agent_context: AgentContext, job: AgentJob) -> None:
    """Export the span of a whole job that has ended."""
    # The server exports that of a claimed job.
    record = job.record
    if record.state.final and not record.polled:
        error = (record.error or record.state.value) if record.state is JobState.FAILED else None
        trace_of(agent_context, job).whole("task", record.order, record.asked_by, error)


class RequestDispatcher:
    """Sends requested pauses and cancels of one job to its process, each once."""

    def __init__(self, job: AgentJob) -> None:
        self._job = job
        self._sent: str | None = None
        self._checked_at = 0.0

    def dispatch(self, handle: JobHandle) -> None:
        """Apply the current request; called several times a second."""
        record = self._job.record
        if record.wish == "cancel" and self._sent != "cancel":
            handle.cancel(GRACE_S)
            self._sent = "cancel"
            logger.info("Cancelling job(%s).", record.job_id)
        elif record.wish == "pause":
            self._pause(handle)

    def _pause(self, handle: JobHandle) -> None:
        """Send the pause until the trainer accepts it; while loading, it accepts nothing."""
        command_id = self._job.record.pause_id
        if self._sent != command_id:
            try:
                handle.command(ControlCommand.PAUSE, {}, command_id)
            except (ConflictError, NotFoundError) as error:
                logger.debug("job(%s) does not accept a pause yet: %s", self._job.job_id, error)
            except InputError as error:
                self._job.note(wish=None)
                self._job.add_warning(f"The pause failed: {error}")
            except TunefleetError as error:
                logger.debug("job(%s) does not respond: %s", self._job.job_id, error)
            else:
                self._sent = command_id
                logger.info("Pausing job(%s).", self._job.job_id)
        elif time.monotonic() - self._checked_at > _CHECK_S:
            self._checked_at = time.monotonic()
            self._check_pause(handle, command_id)

    def _check_pause(self, handle: JobHandle, command_id: str) -> None:
        try:
            state = handle.command_state(command_id)
        except TunefleetError as error:
            logger.debug("job(%s) does not report the state of the pause: %s", self._job.job_id, error)
            return
        if state.state == "failed" and handle.poll() is None:
            self._job.note(wish=None)
            self._job.add_warning(f"The pause failed, the job continues: {state.message or 'no checkpoint saved'}")
