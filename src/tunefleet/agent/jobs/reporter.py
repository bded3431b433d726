"""Reports one job to the backend: its status, and through the shipper its metrics, predictions and log, in order.

Its position is on disk (`shipped.json` and the record), so that nothing is lost while the backend or the agent is down.
Reports that the backend rejects permanently are counted and skipped; an invalid token ends the reports of the job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
    wait_exponential,
    wait_random,
)
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_base

from tunefleet.agent.jobs.backend_sink import BackendSink, skip
from tunefleet.agent.jobs.job import AgentJob
from tunefleet.agent.jobs.job_context import AgentContext
from tunefleet.agent.jobs.job_run import trace_of
from tunefleet.client.backend import BackendBusy, BackendFault, JobClient
from tunefleet.errors import AuthError, TunefleetError, UnreachableError
from tunefleet.executors.base import JobExecutor
from tunefleet.runtime import JournalShipper
from tunefleet.schemas.training_protocol.training import JobState, StatusPatch
from tunefleet.trainer_control.files import read_json

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.2
_BACKOFF_S: Final = (0.2, 5.0)
# Failed tries in a row before a warning appears in the job's status.
_WARN_AFTER: Final = 6
# Pause before a failed status report is repeated while the job runs.
_STATUS_RETRY_S: Final = 180.0
# After this time without success, a round ends and checks again whether the report is still needed.
_ROUND_S: Final = 600.0
_GIVEN_UP_S: Final = 7 * 24 * 3600.0
_REPORTED_STATES: Final = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.PAUSED})


class _StopAfterFailures(stop_base):
    """Stops once the backend has responded with an error many times in a row."""

    def __init__(self) -> None:
        self._faults = 0

    def __call__(self, retry_state: RetryCallState) -> bool:
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        self._faults = self._faults + 1 if isinstance(error, BackendFault | BackendBusy) else 0
        return self._faults > _WARN_AFTER


class Reporter:
    """Reports one job in its own thread, until its end is reported."""

    def __init__(self, job: AgentJob, client: JobClient, *, load: Any = None, before_end: Any = None) -> None:
        self._job = job
        self._client = client
        self._load = load or (lambda: None)
        self._before_end = before_end
        self._stopping = threading.Event()
        self._done_steps: set[tuple[int, JobState, str]] = set()
        self._status_retry_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"report-{job.job_id}", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether its thread is running."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start reporting."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current request."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and self._once_more():
                self._stopping.wait(_LOOK_S)
        except AuthError as error:
            self._mute(f"The backend rejected the job's token; reports stopped: {error}")
        except TunefleetError as error:
            logger.debug("Reports of job(%s) were interrupted: %s", self._job.job_id, error)
        except Exception:
            logger.exception("Reports of job(%s) failed.", self._job.job_id)
        finally:
            self._client.close()

    def _once_more(self) -> bool:
        try:
            return self._round()
        except UnreachableError:
            return not self._stopping.is_set()  # the next round checks whether the report is still needed

    def _round(self) -> bool:
        """Report changes; False once everything is reported."""
        record = self._job.record
        if record.muted is not None:
            return False
        if record.state is JobState.RUNNING:
            self._report_status(JobState.RUNNING)
            if self._launched():
                self._ship_while_running()
            return True
        if record.state in _REPORTED_STATES and record.told is not record.state:
            if record.completed_at and time.time() - record.completed_at > _GIVEN_UP_S:
                self._mute("The backend did not accept the job's end for a week; reports stopped.")
                return False
            if self._launched():
                self._once(self._flush)
            if record.state is JobState.COMPLETED and self._before_end is not None:
                before_end = self._before_end
                self._once(lambda: self._with_retries(before_end), what="before_end")
            self._report_status(record.state)
        return not self._job.record.state.final

    def _once(self, act: Callable[[], None], what: str = "flush") -> None:
        """Run a step of the job's end once, even if the report of the end itself is repeated."""
        done = (self._job.record.attempt, self._job.record.state, what)
        if done not in self._done_steps:
            act()
            self._done_steps.add(done)

    def _launched(self) -> bool:
        """Whether this attempt has been launched."""
        # Until then the folder belongs to an earlier attempt, or does not exist.
        job = read_json(self._job.folder.job_json) or {}
        return job.get("attempt") == self._job.record.attempt

    def _ship_while_running(self) -> None:
        sink = BackendSink(self._job, self._client, self._load)
        shipper = JournalShipper(self._job.folder, sink)
        shipper.start()
        try:
            while not self._stopping.is_set() and self._job.record.state is JobState.RUNNING and sink.refused is None:
                self._stopping.wait(_LOOK_S)
        finally:
            shipper.stop()
        if sink.refused is not None:
            raise sink.refused

    def _flush(self) -> None:
        sink = BackendSink(self._job, self._client, self._load)
        shipper = JournalShipper(self._job.folder, sink)
        began = time.monotonic()
        while not shipper.flush(5.0):
            if sink.refused is not None:
                raise sink.refused
            if time.monotonic() - began > _ROUND_S:
                raise UnreachableError("The backend does not accept the remaining reports.")
            if self._stopping.wait(0.5):
                raise UnreachableError("The agent is stopping.")
        self._with_retries(sink.flush_tail)
        self._with_retries(sink.send_deferred)

    def _report_status(self, state: JobState) -> None:
        if self._job.record.told is state or (state is JobState.RUNNING and time.monotonic() < self._status_retry_at):
            return
        patch = StatusPatch(status=state.value, **self._job.describe_end())
        what = f"status {state}"
        try:
            self._with_retries(lambda: self._client.status(self._job.job_id, patch), what=what)
        except (BackendFault, BackendBusy) as error:
            away = isinstance(error, BackendBusy) and not self._client.is_there(self._job.job_id, 0)
            if state is not JobState.RUNNING or away:
                raise
            # Metrics and log are not blocked by it; it is retried from time to time.
            self._job.add_warning(f"The backend fails on {what}, which is sent again later: {error}")
            self._status_retry_at = time.monotonic() + _STATUS_RETRY_S
            return
        self._job.note(told=state)

    def _with_retries(self, call: Any, *, what: str | None = None) -> None:
        initial, longest = _BACKOFF_S
        for attempt in Retrying(
            retry=retry_if_exception_type(UnreachableError),
            wait=wait_exponential(multiplier=initial, max=longest) + wait_random(0, initial),
            stop=stop_any(stop_when_event_set(self._stopping), stop_after_delay(_ROUND_S), _StopAfterFailures()),
            sleep=sleep_using_event(self._stopping),
            before_sleep=partial(self._warn, what),
            reraise=True,
        ):
            with attempt:
                try:
                    call()
                except (UnreachableError, AuthError):
                    raise
                except TunefleetError as error:
                    skip(self._job, what or "the rest", error)

    def _warn(self, what: str | None, state: RetryCallState) -> None:
        """Add a warning to the job's status after several failed tries."""
        if state.attempt_number == _WARN_AFTER and state.outcome is not None:
            error = state.outcome.exception()
            self._job.add_warning(f"The backend does not accept {what or 'the rest'}, retrying: {error}")

    def _mute(self, reason: str) -> None:
        logger.error("job(%s) %s", self._job.job_id, reason)
        self._job.note(muted=reason)


def reporter_for(agent_context: AgentContext, job: AgentJob) -> Reporter | None:
    """Build the reporter of a job; None if it has no backend, or everything is reported."""
    record = job.record
    if record.backend is None or record.token is None or job.fully_reported:
        return None
    client = agent_context.backend(record.backend, record.token)
    return Reporter(job, client, load=_load_of(agent_context, job), before_end=_deliverer(agent_context, job))


def _load_of(agent_context: AgentContext, job: AgentJob) -> Callable[[], float | None]:
    def load() -> float | None:
        gpus = job.handle.job.gpus if job.handle is not None else ()
        return agent_context.load(gpus[0]) if gpus else None

    return load


def _deliverer(agent_context: AgentContext, job: AgentJob) -> Callable[[], None] | None:
    """Return a function that uploads the job's outputs; None unless the backend is a Tunefleet server."""
    record = job.record
    executor = agent_context.registry.find(record.kind)
    if not record.delivers or not isinstance(executor, JobExecutor):
        return None

    def deliver() -> None:
        # From the end of the job, not from this try: the span covers all tries of the delivery.
        began = job.record.completed_at or time.time()
        outputs = [(output.name, output.kind, output.path) for output in executor.outputs(job.folder)]
        client = agent_context.backend(record.backend or "", record.token or "")
        try:
            client.deliver(job.job_id, outputs)
        finally:
            client.close()
        trace_of(agent_context, job).export("deliver", began, key=str(record.attempt))

    return deliver
