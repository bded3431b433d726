"""The worker: registers, exchanges messages with the server, accepts offers, and owns its attempts."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from tunefleet import __version__
from tunefleet.errors import TunefleetError, UnreachableError
from tunefleet.executors.base import JobExecutor, LightExecutor
from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.worker_link import (
    Capabilities,
    Command,
    CommandOutcome,
    ExchangeReply,
    ExchangeRequest,
    Finish,
    Offer,
    RegisterReply,
    RegisterRequest,
    SlotClass,
)
from tunefleet.transport.base import WorkerLink
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.exchange import Exchanger, register_patiently
from tunefleet.worker.interfaces import Handle
from tunefleet.worker.jobs.attempt import JobAttempt
from tunefleet.worker.jobs.discard import Discarder
from tunefleet.worker.jobs.inline_tasks import LightTasks
from tunefleet.worker.outbox import Draft
from tunefleet.worker.state import AttemptRecord

logger = logging.getLogger(__name__)

_JOIN_S: Final = 60.0
# Concurrent deliveries that occupy no slot; each has waiting threads, and its job folder on this disk.
_DELIVERIES: Final = 64
_LEAVE_TRIES: Final = 5
# How long an idle worker that is stopped may take to sign off.
_LEAVE_S: Final = 3.0


class Worker:
    """Runs on one results folder, whose lock the caller holds."""

    def __init__(
        self,
        worker_id: str,
        session: str,
        *,
        worker_context: WorkerContext,
        link: WorkerLink,
        probe: Callable[[], Capabilities],
        slots: dict[SlotClass, int],
        drain: bool = False,
        on_admin_command: Callable[[Command], None] | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._session = session
        self._context = worker_context
        self._link = link
        self._probe = probe
        self._slots = slots
        self._drain = drain
        self._told_to_leave = False
        self._drained = False
        self._unheard = False
        self._makes_way = False
        self._dismissed = False
        self._on_admin_command = on_admin_command
        self._light = LightTasks(
            worker_context.outbox,
            slots.get("light", 0),
            worker_context.secrets,
            worker_context.transfers,
            worker_id=worker_id,
            spans=worker_context.spans,
        )
        self._discarder = Discarder(worker_context.results_dir, worker_context.outbox, self._holds)
        self._attempts: dict[str, JobAttempt] = {}
        self._lock = threading.Lock()
        self.over = threading.Event()
        """Set once the worker is to end."""
        self.registered = False
        """Whether the worker has ever registered."""
        self._suspend = False
        self._fatal: Exception | None = None
        self._exchanger = Exchanger(link, worker_context.outbox, self, on_fatal=self.give_up)

    def run(self) -> None:
        """Run until `stop`, until drained, or until an error that a retry cannot fix.

        Raises:
            TunefleetError: On such an error: an invalid or revoked key, a worker id that is in use.
        """
        self._resume_held()
        if self._drain and not self._attempts:
            return
        reply = register_patiently(self, self.over, before_sleep=_say_once())
        if reply is not None:
            logger.info("Registered as %s.", self._worker_id)
            self.registered = True
            if self._context.gpu_monitor is not None:
                self._context.gpu_monitor.start(on_change=self._exchanger.request_registration)
            self._exchanger.start(reply.hold_s)
            self.over.wait()
        if self._fatal is not None:
            raise self._fatal
        if self._drained:
            logger.info("Everything is delivered; the worker exits.")
            self._take_leave(_LEAVE_TRIES)
        elif reply is not None and self._holds_nothing():
            # In a thread, so that Ctrl-C does not wait for a server that hangs.
            leaving = threading.Thread(target=self._take_leave, args=(1,), name="leave", daemon=True)
            leaving.start()
            leaving.join(_LEAVE_S)

    def stop(self, *, suspend: bool = False) -> None:
        """End `run`; may be called from any thread, and repeatedly."""
        self._suspend = self._suspend or suspend
        self.over.set()
        for attempt in self._held():
            attempt.mailbox.notify_stop(suspend=suspend)

    def make_way(self) -> None:
        """Save and release running tasks, accept nothing new, and end; may be called from any thread.

        For a machine that is being preempted: its tasks resume elsewhere from their newest checkpoint.
        """
        self._makes_way = True
        for attempt in self._held():
            attempt.mailbox.notify_preempted()
        self._context.outbox.poke()
        self._end_if_drained()

    def give_up(self, error: Exception) -> None:
        """End `run` with an error."""
        self._fatal = error
        self.over.set()

    @property
    def idle(self) -> bool:
        """Whether it has no task to run or to deliver."""
        return self._holds_nothing()

    @property
    def left(self) -> bool:
        """Whether it has ended with everything delivered, so that its folder can be deleted."""
        # If the sign-off failed, the server reserves the id for this results folder until it declares the worker lost.
        return self._drained and not self._unheard

    @property
    def made_way(self) -> bool:
        """Whether it has ended because the machine was preempted, and its task is still wanted."""
        return self._makes_way and not self._dismissed

    def request_registration(self) -> None:
        """Register again, since the capabilities of this machine have changed."""
        self._exchanger.request_registration()

    def close(self) -> None:
        """Release everything after `run`; jobs that were not suspended keep running."""
        self._exchanger.stop()
        for attempt in self._held():
            attempt.mailbox.notify_stop(suspend=False)
            attempt.join(_JOIN_S)
        if self._context.gpu_monitor is not None:
            self._context.gpu_monitor.close()
        self._light.close()
        self._discarder.close()
        self._context.jobs.close()
        self._link.close()

    # Callbacks of the exchange (`exchange.ExchangeDelegate`).

    def draft(self, wait_s: float) -> Draft:
        """Build the next request; called under the outbox's lock."""
        held = self._held()
        # Read before the free slots: a job that ends in between counts as running in this request.
        delivering = tuple(token for attempt in held for token in attempt.delivering) + self._light.delivering
        return self._context.outbox.draft(
            holding=tuple(token for attempt in held for token in attempt.tokens) + self._light.holding,
            want=self._want(),
            wait_s=wait_s,
            delivering=delivering,
            draining=self._told_to_leave,
        )

    def register(self) -> RegisterReply:
        """Register, and drop the attempts that the server has dropped."""
        held = {token: None for attempt in self._held() for token in attempt.tokens}
        # A light task that has ended is held by the outbox only. Running tasks are read first, so that a task that
        # ends between the two reads is in one of them.
        running = self._light.holding
        held |= dict.fromkeys((*running, *self._context.outbox.finishing))
        request = RegisterRequest(
            worker_id=self._worker_id,
            session=self._session,
            state_id=self._context.state.state_id(),
            capabilities=self._probe(),
            holding=tuple(held),
            sent_at=time.time(),
        )
        reply = self._link.register(request)
        if reply.clock_ahead_s is not None:
            logger.warning(
                "The clock of this machine is %.0f s %s the server's, so times of its logs and metrics are wrong. "
                "Synchronize it, for example with NTP.",
                abs(reply.clock_ahead_s),
                "ahead of" if reply.clock_ahead_s > 0 else "behind",
            )
        for token in reply.drop:
            self._drop(token)
        return reply

    def handle(self, reply: ExchangeReply) -> None:
        """Handle a reply of the server."""
        for token in reply.drop:
            self._drop(token)
        self._pass_on(reply)
        self._discarder.discard(reply.discard)
        if reply.drain is not None and reply.drain != self._told_to_leave:
            logger.info("The server %s draining this worker.", "started" if reply.drain else "cancelled")
            self._told_to_leave = reply.drain
            self._context.outbox.poke()
        if not (self._drain or self._makes_way):
            self._take(reply.offers)
        self._end_if_drained()

    def _end_if_drained(self) -> None:
        if not (self._drain or self._told_to_leave or self._makes_way) or self.over.is_set():
            return
        if self._holds_nothing():
            self._drained = True
            self._dismissed = self._told_to_leave
            self.over.set()

    def _holds_nothing(self) -> bool:
        with self._lock:
            holds = bool(self._attempts)
        return not holds and not self._light.busy and not self._context.outbox.finishing

    def _take_leave(self, tries: int) -> None:
        """Sign off from the server."""
        self._exchanger.stop()
        last = ExchangeRequest(worker_id=self._worker_id, session=self._session, draining=self._drained, leaves=True)
        try:
            for attempt in Retrying(
                retry=retry_if_exception_type(UnreachableError), stop=stop_after_attempt(tries), wait=wait_fixed(0.5),
                reraise=True,
            ):  # fmt: skip
                with attempt:
                    self._link.exchange(last)
        except TunefleetError as error:
            self._unheard = self.registered and isinstance(error, UnreachableError)
            logger.warning("Could not deregister; the server will declare this worker lost: %s", error)

    def _pass_on(self, reply: ExchangeReply) -> None:
        """Forward a reply to its attempts; light tasks only get their desired state."""
        boxes = {attempt.token: attempt.mailbox for attempt in self._held()}
        reply = self._tell_parts(reply)
        for token in boxes.keys() & set(reply.accepted):
            boxes[token].notify_acked(reply.points.get(token))
        for token in boxes.keys() & set(reply.finished):
            boxes[token].notify_finished()
        for behind in reply.behind:
            self._context.outbox.hold_back(behind.token)
            if behind.token in boxes:
                boxes[behind.token].notify_behind()
        for command in reply.commands:
            if not command.token and self._on_admin_command is not None:
                self._on_admin_command(command)
            elif command.token in boxes:
                boxes[command.token].add_command(command)
        attempts = {attempt.token: attempt for attempt in self._held()}
        for desired in reply.desired:
            if desired.token in attempts:
                attempts[desired.token].apply_desired(desired)
            else:
                self._light.apply_desired(desired)

    def _tell_parts(self, reply: ExchangeReply) -> ExchangeReply:
        """Forward a reply to the coalesced tasks, and return the rest of it."""
        parts = {token: attempt.parts for attempt in self._held() for token in attempt.parts.tokens}
        if not parts:
            return reply
        for token in parts.keys() & set(reply.finished):
            parts[token].finished(token)
        for desired in reply.desired:
            if desired.token in parts:
                parts[desired.token].apply_desired(desired)
        for command in reply.commands:
            if command.token in parts:
                message = "The run is coalesced with another run, and accepts no commands of its own."
                outcome = CommandOutcome(command_id=command.command_id, state="failed", message=message)
                self._context.outbox.outcome(outcome)
        return reply.model_copy(
            update={
                "desired": tuple(each for each in reply.desired if each.token not in parts),
                "commands": tuple(each for each in reply.commands if each.token not in parts),
            }
        )

    def _want(self) -> dict[SlotClass, int]:
        if self.over.is_set():
            return {}
        # Zeros, not an empty dict: a drained worker wants no tasks, but is still connected.
        leaves = self._drain or self._told_to_leave or self._makes_way
        return {"job": 0, "light": 0} if leaves else self._free()

    def _free(self) -> dict[SlotClass, int]:
        held = self._held()
        busy = sum(attempt.occupies_slot for attempt in held)
        busy += max(0, len(held) - busy - _DELIVERIES)
        gpu_monitor = self._context.gpu_monitor
        slots = 0 if gpu_monitor is not None and gpu_monitor.all_in_use() else self._slots.get("job", 0)
        return {"job": max(0, slots - busy), "light": max(0, self._light.free_slots)}

    def _take(self, offers: tuple[Offer, ...]) -> None:
        light: list[tuple[LightExecutor, Offer]] = []
        for offer in offers:
            executor = None if offer.unreadable else self._context.registry.find(offer.kind)
            if isinstance(executor, LightExecutor):
                light.append((executor, offer))
            elif isinstance(executor, JobExecutor):
                self._take_job(executor, offer)
            else:
                for token in (offer.token, *(part.token for part in offer.merged)):
                    self._context.outbox.finish(_not_for_me(offer, token))
        if light:
            self._light.run(light)

    def _take_job(self, executor: JobExecutor, offer: Offer) -> None:
        with self._lock:
            known = offer.token in self._attempts
        if known or self.over.is_set() or self._free()["job"] < 1:
            return
        try:
            first = offer.gang is not None and offer.gang.rank == 0
            record = AttemptRecord(offer=offer, point=self._context.rendezvous.choose_endpoint() if first else None)
            self._context.state.keep(record)
        except (OSError, TunefleetError) as error:
            # Not accepted: the server reschedules the task, and backs off from this worker.
            logger.warning("Could not accept task %s: %s", offer.task_id, error)
            return
        logger.info("Accepted task %s (%s), attempt %d.", offer.task_id, offer.kind, offer.attempt)
        self._hold(executor, record, None)

    def _hold(self, executor: JobExecutor, record: AttemptRecord, found: Handle | None) -> None:
        wanted = {record.offer.task_id, *(part.task_id for part in record.offer.merged)}
        with self._lock:
            earlier = [a for a in self._attempts.values() if wanted & set(a.task_ids)]
            attempt = JobAttempt(
                self._context,
                record,
                executor=executor,
                found=found,
                after=earlier[-1] if earlier else None,
                on_gone=self._gone,
            )
            self._attempts[attempt.token] = attempt
        attempt.start()
        # A stop or preemption that came in between has not seen the new attempt.
        if self._makes_way:
            attempt.mailbox.notify_preempted()
        if self.over.is_set():
            attempt.mailbox.notify_stop(suspend=self._suspend)

    def _resume_held(self) -> None:
        """Resume the attempts of an earlier process on this folder."""
        # Sorted by attempt, so that a later attempt of a task waits for the end of the earlier one.
        handles = {handle.job.task_id: handle for handle in self._context.jobs.adopt()}
        for record in sorted(self._context.state.attempts(), key=lambda r: (r.offer.task_id, r.offer.attempt)):
            executor = self._context.registry.find(record.offer.kind)
            if not isinstance(executor, JobExecutor):
                logger.error(
                    "Cannot resume task %s: no executor for %s is installed.", record.offer.task_id, record.offer.kind
                )
                continue
            handle = handles.get(record.offer.task_id)
            mine = handle is not None and record.launch is not None and handle.job.launch == record.launch
            self._hold(executor, record, handles.pop(record.offer.task_id) if mine else None)
        for handle in handles.values():
            if handle.poll() is None:
                logger.warning(
                    "Job %s is running, but this worker holds no attempt of it; ignoring it.", handle.job.job_id
                )

    def _drop(self, token: str) -> None:
        with self._lock:
            attempt = self._attempts.get(token)
        parts = next((each.parts for each in self._held() if token in each.parts.tokens), None)
        if attempt is not None:
            attempt.mailbox.notify_dropped()
        elif parts is not None:
            parts.drop(token)
        else:
            self._light.drop(token)

    def _gone(self, attempt: JobAttempt) -> None:
        with self._lock:
            self._attempts.pop(attempt.token, None)
        self._end_if_drained()

    def _holds(self, task_id: str) -> bool:
        return any(task_id in attempt.task_ids for attempt in self._held())

    def _held(self) -> list[JobAttempt]:
        with self._lock:
            return list(self._attempts.values())


def new_session() -> str:
    """Return a new id for a worker process."""
    return secrets.token_hex(8)


def _not_for_me(offer: Offer, token: str) -> Finish:
    """Return the end of an attempt that this worker cannot run, since its version differs from the server's."""
    error = f"This worker has no executor for {offer.kind!r}."
    if offer.unreadable:
        error = f"This worker (version {__version__}) cannot read the server's offer: {offer.unreadable}."
    return Finish(token=token, outcome="failed", reason=TaskReason.BUG, error=error)


def _say_once() -> Callable[[RetryCallState], None]:
    """Return a callback that logs only the first failed try."""

    def say(state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            logger.warning("%s The worker keeps trying.", state.outcome.exception())

    return say
