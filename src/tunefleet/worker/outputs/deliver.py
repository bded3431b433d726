"""From a job's end to its finish message: flush the journal, upload the outputs, build the message."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tunefleet.client.external.interrupt import CancelToken
from tunefleet.errors import (
    ArtifactError,
    AuthError,
    ForbiddenError,
    InputError,
    MachineError,
    NotFoundError,
    TooLargeError,
    TunefleetError,
    UnreachableError,
    is_disk_full,
)
from tunefleet.executors.base import JobExecutor, Output, ResultError
from tunefleet.fsutil import write_synced
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import exit_classification
from tunefleet.runtime.monitor.guard import End
from tunefleet.runtime.monitor.journal_audit import losses
from tunefleet.runtime.secrets import Redaction
from tunefleet.schemas.job_folder import Shipped
from tunefleet.schemas.worker_link import Finish, JournalBatch, Offer
from tunefleet.trainer_control.files import read_json
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.interfaces import Delivery, Shipper
from tunefleet.worker.mailbox import Cancelled, Mailbox
from tunefleet.worker.outputs.destinations import DeliveryError, Destination
from tunefleet.worker.outputs.output_files import Outputs

logger = logging.getLogger(__name__)

_FLUSH_S: Final = 5.0
# How long to wait for disk space for an archive.
_ROOM_PATIENCE_S: Final = 3600.0
_ROOM_PAUSE_S: Final = 30.0
# Errors that a retry of the upload does not fix, or that may mean that the attempt is void.
_LASTING: Final = (AuthError, ForbiddenError, ArtifactError, InputError, NotFoundError, TooLargeError)


class Deliverer:
    """Delivers the outputs of one attempt.

    Args:
        unwanted: Whether the task has been cancelled. A delivery that succeeds is still completed; one that would have
            to wait for a retry ends.
    """

    def __init__(
        self,
        worker_context: WorkerContext,
        offer: Offer,
        *,
        executor: JobExecutor,
        mailbox: Mailbox,
        delivery: Delivery,
        unwanted: Callable[[], bool],
    ) -> None:
        self._context = worker_context
        self._offer = offer
        self._executor = executor
        self._mailbox = mailbox
        self._delivery = delivery
        self._unwanted = unwanted
        self._folder = worker_context.folder(offer.task_id)
        self._outputs = Outputs(offer, self._folder, worker_context.transfers.packing)
        self._destination = Destination(
            offer.task_id,
            offer.spec.get("output") or {},
            worker_context.transfers,
            worker_context.secrets,
            self._pause,
            self.held_up,
            project=offer.project,
        )
        self._shipper: Shipper | None = None
        self._lost: tuple[str, ...] = ()

    @contextmanager
    def shipping(self) -> Iterator[None]:
        """Deliver journal and log while the body runs."""
        hidden = self._context.secrets.redaction(self._offer.spec)
        self._shipper = self._context.shipper(self._folder, _AttemptSink(self._offer.task_id, self._delivery, hidden))
        self._shipper.start()
        try:
            yield
        finally:
            self._shipper.stop()

    def finish_of(self, end: End, *, cancelled: bool, timed_out: bool) -> Finish:
        """Deliver everything that belongs to an end, and return its finish message."""
        finish = self._in_words(end, cancelled=cancelled, timed_out=timed_out)
        self._tell_losses()
        cursors = self._flush()
        if finish.outcome == "completed":
            finish = self._with_outputs(finish)
        hidden, fields = self._context.secrets.redaction(self._offer.spec), ("error", "detail", "result")
        clean = {name: hidden.value(getattr(finish, name)) for name in fields} if hidden else {}
        return finish.model_copy(update={"cursors": cursors, **clean})

    def _tell_losses(self) -> None:
        """Report journal records lost on disk in the task's history; the result contains them as warnings."""
        self._lost = losses(self._folder)
        launch = str((read_json(self._folder.job_json) or {}).get("launch"))
        for message in self._lost:
            logger.warning("Task %s: %s", self._offer.task_id, message)
            exit_classification.add(self._folder, launch, "journal.lost", message)

    def finish_of_member(self, end: End, *, cancelled: bool) -> Finish:
        """Return the finish message of a node other than the first; it has no outputs."""
        finish = self._in_words(end, cancelled=cancelled, timed_out=False)
        hidden = self._context.secrets.redaction(self._offer.spec)
        clean = {name: hidden.value(getattr(finish, name)) for name in ("error", "detail")} if hidden else {}
        return finish.model_copy(update=clean)

    def finish_of_part(self) -> Finish:
        """Deliver the outputs of a coalesced task, and return its finish message."""
        finish = self._with_outputs(Finish(token=self._offer.token, outcome="completed", reason=TaskReason.FINISHED))
        hidden = self._context.secrets.redaction(self._offer.spec)
        return finish.model_copy(update={"error": hidden.value(finish.error)}) if hidden else finish

    def held_up(self, why: str | None) -> None:
        """Report why the delivery is delayed; None when it continues."""
        message = why and self._context.secrets.redaction(self._offer.spec).text(why)
        self._context.outbox.held_up(self._offer.token, message)

    def resend_journal(self, finish: Finish) -> Finish:
        """Deliver the journal from its start, since the server lacks records; it ignores those that it has."""
        logger.warning("The server lacks journal records of task %s; sending them again.", self._offer.task_id)
        try:
            shipped = Shipped.model_validate_json(self._folder.shipped_json.read_bytes())
        except (OSError, ValidationError):
            shipped = Shipped(attempt=self._offer.attempt)
        shipped = shipped.model_copy(update={"cursors": {}, "offsets": {}})
        write_synced(self._folder.shipped_json, shipped.model_dump_json())
        with self.shipping():
            return finish.model_copy(update={"cursors": self._flush()})

    def _in_words(self, end: End, *, cancelled: bool, timed_out: bool) -> Finish:
        token = self._offer.token
        if end.outcome == "completed":
            return Finish(token=token, outcome="completed", reason=end.reason)
        if cancelled:
            return Finish(token=token, outcome="cancelled", reason=TaskReason.CANCELLED_BY_USER)
        if timed_out:
            limit = self._offer.spec["limits"]["max_runtime_s"]
            error = f"The run took longer than limits.max_runtime_s ({limit} s) allows."
            return Finish(token=token, outcome="failed", reason=TaskReason.TIMEOUT, error=error)
        return Finish(token=token, outcome=end.outcome, reason=end.reason, error=end.error, detail=end.detail)

    def clean_up(self) -> None:
        """Delete delivered outputs, if the worker is configured to."""
        if self._context.transfers.cleanup:
            self._outputs.clean_up(self._executor.outputs(self._folder))

    def _with_outputs(self, finish: Finish) -> Finish:
        try:
            return self._delivered(finish)
        except Cancelled:
            task_id = self._offer.task_id
            logger.info("Task %s was cancelled while its delivery waited; the server keeps uploaded files.", task_id)
            return Finish(token=finish.token, outcome="cancelled", reason=TaskReason.CANCELLED_BY_USER)
        finally:
            self.held_up(None)

    def _delivered(self, finish: Finish) -> Finish:
        outputs = self._executor.outputs(self._folder)
        result: dict[str, Any] = {}
        try:
            result = self._packed_and_brought(outputs)
            result = self._context.secrets.redaction(self._offer.spec).value(result)
            self._beside(outputs, result)
        except (ResultError, TooLargeError, ArtifactError, InputError) as error:
            # A retry cannot fix these; the files stay in the job folder.
            logger.warning("Could not deliver the outputs of task %s: %s", self._offer.task_id, error)
            return Finish(token=finish.token, outcome="failed", reason=reason_of(error), error=str(error))
        except (DeliveryError, MachineError) as error:
            logger.warning("Could not deliver the outputs of task %s: %s", self._offer.task_id, error)
            reason = TaskReason.DELIVERY_FAILED
            return Finish(token=finish.token, outcome="failed", reason=reason, error=str(error), result=result)
        return finish.model_copy(update={"result": result})

    def _packed_and_brought(self, outputs: Sequence[Output]) -> dict[str, Any]:
        """Upload the outputs to the server; retries while the disk has no space for an archive."""
        patience_s = min(_ROOM_PATIENCE_S, self._context.transfers.patience_s)
        result = self._executor.result(self._folder)
        if self._lost:
            result = {**result, "warnings": [*result.get("warnings", ()), *self._lost]}
        return Retrying(
            retry=retry_if_exception_type(MachineError),
            wait=wait_fixed(_ROOM_PAUSE_S),
            stop=stop_after_delay(patience_s),
            sleep=self._pause,
            before_sleep=self._say_no_room,
            reraise=True,
        )(self._outputs.deliver, outputs, result, self._bring, self._links)

    def _say_no_room(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, MachineError):
            logger.warning("Could not pack the outputs of task %s, retrying: %s", self._offer.task_id, error)
            self.held_up(f"{error.message} Packing is retried.")

    def _beside(self, outputs: Sequence[Output], result: Mapping[str, Any]) -> None:
        """Write the result to the job folder, and deliver it to the destination of the spec."""
        envelope = self._outputs.envelope(result, self._context.state.worker_id(None))
        try:
            self._outputs.write_down(envelope)
        except OSError as error:
            # Not an error: the server has the result.
            logger.warning("Could not write the result of task %s: %s", self._offer.task_id, error)
        files = self._outputs.files(outputs, result)
        self._while_wanted(lambda stop: self._destination.deliver(envelope, files, stop))
        self._destination.copy(self._folder.root)
        throttle = self._context.transfers.throttle
        if throttle is not None:
            throttle.take(len(envelope.model_dump_json()))

    def _bring(self, name: str, kind: str, path: Path) -> None:
        self._mailbox.with_retries(lambda: self._push(name, kind, path), unwanted=self._unwanted)
        self.held_up(None)

    def _links(self) -> dict[str, str]:
        files = self._mailbox.with_retries(
            lambda: self._delivery.result_files(self._offer.task_id), unwanted=self._unwanted
        )
        return {file.name: file.url for file in files}

    def _while_wanted(self, act: Callable[[CancelToken], object]) -> None:
        """Call a function that may block in a socket for minutes; raises `Cancelled` soon after it is unwanted."""

        def check() -> None:
            if self._unwanted():
                raise Cancelled

        self._mailbox.interruptibly(act, check)

    def _pause(self, seconds: float) -> None:
        self._mailbox.sleep(seconds, unwanted=self._unwanted)

    def _push(self, name: str, kind: str, path: Path) -> None:
        try:
            # An abandoned push ends with the attempt's connection; the server keeps the files that have arrived.
            self._while_wanted(lambda _: self._delivery.push_artifact(self._offer.task_id, name, kind, path))
        except _LASTING:
            raise
        except TunefleetError as error:
            # Such as a full disk or a bug of the server: a completed training run must not fail for that.
            logger.warning("Could not deliver %s of task %s, retrying: %s", name, self._offer.task_id, error)
            self.held_up(f"{error.message} Delivery of {name} is retried.")
            raise UnreachableError(f"The server cannot store {name} now: {error}") from error

    def _flush(self) -> dict[str, int]:
        shipper = self._shipper
        assert shipper is not None, "shipping() is open"
        while not shipper.flush(_FLUSH_S):
            self.held_up("the end of journal and log is not delivered yet.")
            self._mailbox.sleep(0.2)
        self.held_up(None)
        return dict(shipper.cursors)


class _AttemptSink:
    """A shipper's sink for one task; redacts secret values."""

    def __init__(self, task_id: str, delivery: Delivery, hidden: Redaction) -> None:
        self._task_id = task_id
        self._delivery = delivery
        self._hidden = hidden

    def journal(self, launch: str, from_seq: int, lines: Sequence[str]) -> int:
        """Deliver records and return the server's cursor."""
        batch = JournalBatch(launch=launch, from_seq=from_seq, lines=tuple(map(self._hidden.text, lines)))
        try:
            return self._delivery.journal(self._task_id, batch)
        except TooLargeError as error:
            if len(lines) > 1:
                return self.journal(launch, from_seq, lines[: len(lines) // 2])
            # Replaced, not skipped: a gap would block all later records, and with them the task's end.
            logger.warning("Replacing record %d of %s, which is too large: %s", from_seq, launch, error)
            return self.journal(launch, from_seq, [_stand_in(from_seq, len(lines[0]))])

    def log(self, offset: int, data: bytes) -> int:
        """Deliver a chunk of the log and return the server's cursor."""
        # Redacted to the same length, since offsets into the log count bytes.
        return self._delivery.log(self._task_id, offset, self._hidden.same_length(data))


def _stand_in(seq: int, size: int) -> str:
    message = f"A record of {size:,} characters was dropped: it exceeds the server's body limit."
    fields = {"name": "journal.too_large", "message": message, "level": "warning", "data": {}}
    return json.dumps({"seq": seq, "at": time.time(), "type": "event", **fields})


def reason_of(error: TunefleetError | OSError) -> TaskReason:
    """Return the attempt's end reason for an error outside of the job itself."""
    match error:
        case InputError() | TooLargeError() | ArtifactError() | NotFoundError():
            return TaskReason.BAD_INPUT
        case UnreachableError():
            return TaskReason.NETWORK
        case MachineError():
            return TaskReason.DISK_FULL if is_disk_full(error.__cause__) else TaskReason.MACHINE_ERROR
        case OSError() if is_disk_full(error):
            return TaskReason.DISK_FULL
        case _:
            return TaskReason.BUG
