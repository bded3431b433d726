"""One attempt of a job kind, driven by its own thread from its accept until the server has stored its end.

Every step is on disk before its effect, so that it can be interrupted anywhere and resumed from the record:

    record written ─▶ accept ─▶ ack ─▶ inputs, launch noted ─▶ job runs ─▶ journal flushed, outputs uploaded
    ─▶ finish.json ─▶ finish ─▶ ack ─▶ record removed
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from pydantic import ValidationError

from tunefleet.errors import TunefleetError
from tunefleet.executors.base import JobExecutor
from tunefleet.fsutil import write_synced
from tunefleet.lifecycle.task import TaskReason
from tunefleet.observability import context
from tunefleet.runtime.tracing import AttemptTrace
from tunefleet.schemas.worker_link import Desired, Finish, Reached
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.interfaces import Handle
from tunefleet.worker.jobs.chat_relay import ChatRelay
from tunefleet.worker.jobs.endpoint_relay import relaying
from tunefleet.worker.jobs.job_parts import CoalescedTasks
from tunefleet.worker.jobs.job_run import JobRun, NotLaunched, PausedBeforeLaunch
from tunefleet.worker.machine.rendezvous import as_node, is_member, released
from tunefleet.worker.mailbox import Cancelled, Dropped, Mailbox, Stopped
from tunefleet.worker.outputs.checkpoint_uploads import CheckpointUploads
from tunefleet.worker.outputs.deliver import Deliverer, reason_of
from tunefleet.worker.state import AttemptRecord

logger = logging.getLogger(__name__)

_DROP_GRACE_S: Final = 5.0
_FAILED_GRACE_S: Final = 30.0
# Pause before a retry on a full disk.
_FULL_PAUSE_S: Final = 5.0


class JobAttempt:
    """Owns the thread of one attempt."""

    def __init__(
        self,
        worker_context: WorkerContext,
        record: AttemptRecord,
        *,
        executor: JobExecutor,
        found: Handle | None,
        after: JobAttempt | None,
        on_gone: Callable[[JobAttempt], None],
    ) -> None:
        self.token = record.offer.token
        self.task_id = record.offer.task_id
        self.mailbox = Mailbox()
        self._context = worker_context
        self._after = after
        self._on_gone = on_gone
        self._delivery = worker_context.delivery(self.token)
        self._folder = worker_context.folder(self.task_id)
        self.parts = CoalescedTasks(worker_context, record.offer, executor=executor, mailbox=self.mailbox)
        self._run = JobRun(
            worker_context, record, executor=executor, mailbox=self.mailbox, delivery=self._delivery, parts=self.parts,
            found=found,
        )  # fmt: skip
        self._deliverer = Deliverer(
            worker_context, record.offer, executor=executor, mailbox=self.mailbox, delivery=self._delivery,
            unwanted=self._cancelled,
        )  # fmt: skip
        self._uploads = CheckpointUploads(record.offer, self._folder, worker_context.delivery, self.mailbox)
        self._relay = ChatRelay(
            self.task_id,
            self._folder.root,
            lambda: worker_context.delivery(self.token),
            serves_chat=executor.serves_chat,
        )
        self._serves_http = executor.serves_http
        self._trace = AttemptTrace(record.offer, worker_context.spans, worker_context.worker_id)
        self._held_at = self._over_at = time.time()
        self._job_over = False
        self._noting = threading.Lock()
        self._forgotten = False
        self._thread = threading.Thread(target=self._walk, name=f"attempt-{self.task_id}", daemon=True)

    @property
    def occupies_slot(self) -> bool:
        """Whether the job may still need the machine; delivery does not."""
        return not self._job_over

    @property
    def delivering(self) -> tuple[str, ...]:
        """Tokens whose job has ended, and whose end the server has not stored."""
        return self.tokens if self._job_over else ()

    @property
    def alive(self) -> bool:
        """Whether its thread is still running."""
        return self._thread.is_alive()

    @property
    def tokens(self) -> tuple[str, ...]:
        """Its token, and those of the coalesced tasks."""
        return (self.token, *self.parts.tokens)

    @property
    def task_ids(self) -> tuple[str, ...]:
        """Its task and the coalesced tasks: their folders are in use."""
        return (self.task_id, *self.parts.task_ids)

    def start(self) -> None:
        """Start or resume the attempt; reports the accept, which is idempotent."""
        # Its own accept last: once that is acknowledged, the others have been reported too.
        self.parts.accept()
        record = self._run.record
        first = record.offer.gang is not None and record.offer.gang.rank == 0
        self._context.outbox.accept(self.token, record.point if first else None)
        self._thread.start()

    def apply_desired(self, desired: Desired) -> None:
        """Apply the desired state. While results are delivered, a cancel ends retries, and a pause has no effect."""
        self.mailbox.set_desired(desired)
        if self._job_over:
            with self._noting:
                if not self._forgotten:
                    self._run.store_cancel()
            # `run` is not confirmed: if the job has ended by a pause, the server resumes the task automatically.
            if desired.action != "run":
                self._context.outbox.reach(Reached(token=self.token, generation=desired.generation))
            self.mailbox.wake()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread."""
        self._thread.join(timeout_s)

    def _cancelled(self) -> bool:
        return self._run.cancelled

    def _walk(self) -> None:
        offer = self._run.record.offer
        with context.log_ids(task_id=self.task_id, attempt=offer.attempt, trace_id=self._trace.trace_id):
            self._walk_through()

    def _walk_through(self) -> None:
        try:
            self._say(self._to_finish_or_failure())
            self._trace.export("deliver", self._over_at)
        except Dropped:
            self._end_dropped()
        except Stopped:
            if self.mailbox.suspend:
                self._suspend()
            self._delivery.close()
            return
        if self.parts.wait_until_settled(lambda: self.mailbox.stopped):
            self._forget()
        else:
            self._delivery.close()

    def _suspend(self) -> None:
        try:
            self._run.suspend()
        except TunefleetError:
            logger.exception("Could not suspend the job of task %s; it keeps running.", self.task_id)

    def _to_finish_or_failure(self) -> Finish:
        try:
            return self._to_finish()
        except (Dropped, Stopped):
            raise
        except (TunefleetError, OSError) as error:
            logger.warning("Task %s failed to start: %s", self.task_id, error)
            finish = self._failure(reason_of(error), str(error))
        except Exception as error:
            logger.exception("Attempt of task %s failed with an unexpected error in the worker.", self.task_id)
            finish = self._failure(TaskReason.BUG, f"Unexpected error in the worker: {type(error).__name__}: {error}")
        self._end_job(_FAILED_GRACE_S)
        self._over()
        return self._shared(finish)

    def _shared(self, finish: Finish) -> Finish:
        """Return the end of a coalesced run: if it has failed, each task is retried on its own."""
        others = self.parts.wanted
        self.parts.release(finish.error)
        if not others or finish.outcome != "failed":
            return finish
        return finish.model_copy(update={"outcome": "released", "reason": TaskReason.RELEASED})

    def _to_finish(self) -> Finish:
        point = self.mailbox.await_ack()
        self._trace.export("accept", self._held_at)
        # An earlier attempt of the same task still uses the job folder; its thread must end first.
        if self._after is not None:
            while self._after.alive:
                self.mailbox.pause(0.1)
        spooled = self._spooled()
        if spooled is not None:
            self._over()
            self.parts.say_spooled()
            return spooled
        handle = self._begin(point)
        if isinstance(handle, Finish):
            self._over()
            return handle
        offer = self._run.record.offer
        if is_member(offer):
            return self._end_of_member(handle)
        with self._deliverer.shipping(), self._uploads.under_way(), self._relay.under_way(), self._serving():
            end = self._run.watch(handle)
            self._over()
            if end.outcome in {"paused", "released"}:
                self._upload_newest()
            if end.outcome == "completed":
                self.parts.take_results(self._folder, handle.job.launch)
            finish = self._deliverer.finish_of(end, cancelled=self._run.cancelled, timed_out=self._run.timed_out)
        finish = as_node(offer, finish)
        if end.outcome == "completed":
            self.parts.deliver(self._folder)
        else:
            finish = self._shared(finish)
        # On disk before it is reported: after a restart the same end is reported, and nothing is delivered twice.
        logger.info("Task %s ended: %s%s", self.task_id, finish.outcome, f": {finish.error}" if finish.error else "")
        self._spool(finish)
        self.parts.say_ends()
        return finish

    def _begin(self, point: str | None) -> Handle | Finish:
        """Return the job, or the end of the attempt if none is launched."""
        try:
            if point is not None:
                self._run.meet(point)
            return self._run.begin()
        except NotLaunched as error:
            return released(self._run.record.offer, str(error))
        except PausedBeforeLaunch:
            return Finish(token=self.token, outcome="paused", reason=TaskReason.PAUSED)
        except Cancelled:
            return Finish(token=self.token, outcome="cancelled", reason=TaskReason.CANCELLED_BY_USER)

    def _serving(self) -> AbstractContextManager[None]:
        return relaying(
            self.task_id,
            self._folder.root,
            lambda: self._context.delivery(self.token),
            serves_http=self._serves_http,
        )

    def _end_of_member(self, handle: Handle) -> Finish:
        """Wait for the end of a node that reports and delivers nothing itself."""
        end = self._run.watch(handle)
        self._over()
        finish = as_node(self._run.record.offer, self._deliverer.finish_of_member(end, cancelled=self._run.cancelled))
        self._spool(finish)
        return finish

    def _upload_newest(self) -> None:
        try:
            self._uploads.upload_newest(self._cancelled, self._deliverer.held_up)
        except Cancelled:
            logger.info("Task %s was cancelled before its newest checkpoint was uploaded.", self.task_id)

    def _say(self, finish: Finish) -> None:
        self._context.outbox.finish(finish)
        while not self.mailbox.await_finish_reply():
            self.mailbox.take_behind()
            finish = self._resend_journal(finish)
            self._context.outbox.finish(finish)
        if finish.outcome == "completed":
            self._deliverer.clean_up()

    def _resend_journal(self, finish: Finish) -> Finish:
        while True:
            try:
                return self._deliverer.resend_journal(finish)
            except OSError as error:
                logger.warning("Could not send the journal of task %s again, retrying: %s", self.task_id, error)
                self.mailbox.sleep(_FULL_PAUSE_S)

    def _over(self) -> None:
        if not self._job_over:
            self._job_over = True
            self._over_at = time.time()
            self._context.outbox.poke()

    def _failure(self, reason: TaskReason, error: str) -> Finish:
        # Bad input needs no traceback, and one would reveal the paths of this worker.
        detail = None if reason is TaskReason.BAD_INPUT else traceback.format_exc()
        return Finish(token=self.token, outcome="failed", reason=reason, error=error, detail=detail)

    def _end_dropped(self) -> None:
        logger.info("The server dropped the attempt of task %s; ending its job.", self.task_id)
        self._end_job(_DROP_GRACE_S)
        self._over()
        self.parts.release("the task was reassigned.")

    def _end_job(self, grace_s: float) -> None:
        handle = self._run.handle
        if handle is not None and handle.poll() is None:
            self._run.end(handle, grace_s=grace_s)

    def _spooled(self) -> Finish | None:
        """Return the finish that was written before a restart; one of an earlier attempt is ignored."""
        try:
            finish = Finish.model_validate_json(self._folder.finish_json.read_bytes())
        except (OSError, ValidationError):
            return None
        return finish if finish.token == self.token else None

    def _spool(self, finish: Finish) -> None:
        try:
            write_synced(self._folder.finish_json, finish.model_dump_json())
        except OSError as error:
            # It is delivered all the same; after a crash it is rebuilt from the job folder.
            logger.warning("Could not write the end of task %s: %s", self.task_id, error)

    def _forget(self) -> None:
        # Under the lock that `apply_desired` takes: a cancel that arrives now must not write the record again.
        with self._noting:
            self._forgotten = True
        self._context.outbox.forget(self.token)
        self._acknowledge()
        self._context.state.forget(self._run.record.attempt_id)
        if self._spooled() is not None:
            self._folder.finish_json.unlink(missing_ok=True)
        self._delivery.close()
        self._on_gone(self)

    def _acknowledge(self) -> None:
        handle = self._run.handle
        if handle is None or handle.poll() is None:
            return
        try:
            handle.acknowledge()
        except OSError as error:
            # The next worker on the folder finds an end without an attempt, and ignores it.
            logger.warning("Could not mark the end of task %s as read: %s", self.task_id, error)
