"""All jobs of the agent: the queue, the free slots, and the jobs of an earlier process."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import Any, Final

from tunefleet.agent.jobs import reporter as reporter_factory
from tunefleet.agent.jobs.job import AgentJob, AgentRecord, find_records
from tunefleet.agent.jobs.job_context import AgentContext
from tunefleet.agent.jobs.job_run import JobRun
from tunefleet.agent.jobs.reporter import Reporter
from tunefleet.errors import ConflictError, MachineError, NotFoundError
from tunefleet.schemas.training_protocol.training import JobState

logger = logging.getLogger(__name__)

_LOOK_S: Final = 5.0


class JobTable:
    """The jobs of one `TUNEFLEET_CHECKPOINTS_DIR`. Safe to share between threads."""

    def __init__(self, agent_context: AgentContext) -> None:
        self.context = agent_context
        self.version = 0
        """Incremented with each change of any job."""
        self._jobs: dict[str, AgentJob] = {}
        self._runs: dict[str, threading.Thread] = {}
        self._reporters: dict[str, Reporter] = {}
        self._stopping = threading.Event()
        self._lock = threading.RLock()
        self._changed = threading.Condition()
        self._dispatcher = threading.Thread(target=self._dispatch, name="dispatch", daemon=True)

    def open(self) -> None:
        """Load the jobs of an earlier process, resume running ones, and start queued ones."""
        for record in find_records(self.context.jobs.results_dir):
            self._add(record)
        for handle in self.context.jobs.adopt():
            job = self._jobs.get(handle.job.job_id)
            if job is not None and job.record.launch == handle.job.launch:
                job.handle = handle
        with self._lock:
            for job in self._jobs.values():
                if job.record.state is JobState.RUNNING:
                    self._start(job)
        self._dispatcher.start()

    def close(self) -> None:
        """Detach from the jobs; their processes keep running."""
        self._stopping.set()
        self._bump()
        for reporter in self._reporters.values():
            reporter.stop()
        for job in self._jobs.values():
            job.changed.set()
        # One deadline for all: a service manager kills an agent that takes too long to stop.
        deadline = time.monotonic() + 5.0
        for thread in list(self._runs.values()):
            thread.join(max(0.0, deadline - time.monotonic()))
        for reporter in self._reporters.values():
            reporter.join(max(0.0, deadline - time.monotonic()))

    def submit(self, record: AgentRecord) -> AgentJob:
        """Queue a job; it starts when a slot is free.

        Raises:
            ConflictError: If a job with that id exists.
            MachineError: If its record cannot be written; it is not queued then.
        """
        with self._lock:
            known = self._jobs.get(record.job_id)
            if known is not None:
                raise ConflictError(
                    f"Job {record.job_id} already exists: it is {known.record.state}.",
                    hint="Use a different execution_id.",
                )
            job = self._add(record)
            try:
                job.note()
            except OSError as error:
                del self._jobs[record.job_id]
                raise MachineError(
                    f"Cannot write to TUNEFLEET_CHECKPOINTS_DIR: {error.strerror or error}.",
                    hint="Free space on the agent's disk, or fix the folder's permissions.",
                ) from error
            logger.info("Queued job(%s) %r.", record.job_id, record.name)
        return job

    def renew(self, record: AgentRecord) -> AgentJob:
        """Queue a job again that was reassigned to this agent; it resumes from the checkpoints in its folder.

        A job that is still running continues with the new token.
        """
        job = self.find(record.job_id)
        fresh: dict[str, Any] = {
            "token": record.token,
            "attempt": record.attempt,
            "told": None,
            "muted": None,
            "refused": {},
        }
        if job.record.state is not JobState.RUNNING:
            fresh |= {"state": record.state, "error": record.error, "completed_at": record.completed_at, "wish": None}
            fresh |= {"spec": record.spec or job.record.spec, "order": record.order, "launch": None}
            fresh |= {"resume": record.resume, "watched": record.watched}
            job.handle = None
        self._stop_report(job)
        job.note(**fresh)
        return job

    def drop(self, job_id: str) -> None:
        """End a job that was reassigned to another agent, and stop its reports."""
        job = self.find(job_id)
        if job.record.muted is None:
            logger.info("job(%s) was reassigned; ending it.", job_id)
            job.note(muted="The backend reassigned the job to another agent.")
        if job.record.state is not JobState.PAUSED and not job.record.state.final and job.record.wish != "cancel":
            job.ask_cancel()

    def _stop_report(self, job: AgentJob) -> None:
        reporter = self._reporters.pop(job.job_id, None)
        if reporter is not None:
            reporter.stop()
            reporter.join(10.0)

    def find(self, job_id: str) -> AgentJob:
        """Return a job."""
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFoundError(f"Job {job_id} not found")
        return job

    def jobs(self) -> list[AgentJob]:
        """Return all jobs, oldest first."""
        return sorted(self._jobs.values(), key=lambda job: job.record.order)

    def running(self) -> list[AgentJob]:
        """Return the jobs that occupy a slot."""
        return [job for job in self.jobs() if job.job_id in self._runs]

    def queue(self) -> list[AgentJob]:
        """Return the queued jobs, in order."""
        return [job for job in self.jobs() if job.record.state is JobState.PENDING and job.job_id not in self._runs]

    def free(self) -> int:
        """Return how many more jobs could start immediately."""
        with self._lock:
            return max(0, self.context.settings.max_jobs - len(self._runs) - len(self.queue()))

    def wait(self, seen: int, timeout_s: float) -> int:
        """Wait until something has changed since a version; return the current version."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != seen or self._stopping.is_set(), timeout_s)
            return self.version

    def _add(self, record: AgentRecord) -> AgentJob:
        folder = self.context.jobs.folder(record.job_id)
        job = AgentJob(folder, record, self._bump)
        self._jobs[record.job_id] = job
        return job

    def _bump(self, _: AgentJob | None = None) -> None:
        """Notify waiting threads of a change."""
        # A lock of its own: a caller may hold the lock of its job, and must not wait for `_lock` here.
        with self._changed:
            self.version += 1
            self._changed.notify_all()

    def _dispatch(self) -> None:
        seen = -1
        while not self._stopping.is_set():
            seen = self.wait(seen, _LOOK_S)
            try:
                with self._lock:
                    self._fill()
                    for job in self._jobs.values():
                        self._report(job)
            except Exception:
                logger.exception("Dispatching queued jobs failed, retrying.")
                self._stopping.wait(1.0)

    def _fill(self) -> None:
        for job in self.queue()[: max(0, self.context.settings.max_jobs - len(self._runs))]:
            self._start(job)

    def _start(self, job: AgentJob) -> None:
        run = JobRun(self.context, job, self._stopping)
        thread = threading.Thread(target=partial(self._run, job, run), name=f"job-{job.job_id}", daemon=True)
        self._runs[job.job_id] = thread
        thread.start()

    def _run(self, job: AgentJob, run: JobRun) -> None:
        try:
            run.run()
        finally:
            with self._lock:
                self._runs.pop(job.job_id, None)
            self._bump()

    def _report(self, job: AgentJob) -> None:
        reporter = self._reporters.get(job.job_id)
        if (reporter is not None and reporter.alive) or self._stopping.is_set():
            return
        fresh = reporter_factory.reporter_for(self.context, job)
        if fresh is not None:
            self._reporters[job.job_id] = fresh
            fresh.start()
