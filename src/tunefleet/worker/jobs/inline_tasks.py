"""Light tasks: they run inside the worker process, have no job folder, and their finish implies their accept."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from tunefleet.client.external.interrupt import CancelledByToken, CancelToken
from tunefleet.errors import InputError, TunefleetError, UnreachableError
from tunefleet.executors.base import LightExecutor
from tunefleet.lifecycle.task import TaskReason
from tunefleet.observability import context
from tunefleet.observability.spans import Spans
from tunefleet.runtime.secrets import Redaction, Secrets
from tunefleet.runtime.tracing import AttemptTrace
from tunefleet.schemas.worker_link import Desired, Finish, Offer, Reached
from tunefleet.spec.options.output import OutputSpec
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT
from tunefleet.worker.jobs.job_parts import each_end
from tunefleet.worker.outbox import Outbox
from tunefleet.worker.outputs.light_delivery import LightDelivery
from tunefleet.worker.transfers import Transfers

logger = logging.getLogger(__name__)

# How long to wait so that a batch is reported in one exchange; slower tasks are accepted first and reported later.
_LINGER_S: Final = 0.005
# Concurrent deliveries that occupy no slot; each has a waiting thread.
_DELIVERIES: Final = 64


class LightTasks:
    """Runs light tasks in a thread pool.

    A task that is lost with the worker was never accepted, or is rescheduled as lost.

    Args:
        spans: Destination of trace spans; None if tracing is off.
    """

    def __init__(
        self,
        outbox: Outbox,
        slots: int,
        secrets: Secrets | None = None,
        transfers: Transfers | None = None,
        *,
        worker_id: str = "",
        spans: Spans | None = None,
    ) -> None:
        self._spans = spans
        self._outbox = outbox
        self._slots = slots
        self._secrets = secrets or Secrets({})
        self._transfers = transfers or Transfers()
        self._worker_id = worker_id
        self._over = False
        # Lock order: the outbox's lock first, since a draft is built under it and asks for free slots here. So the
        # outbox is never called while this lock is held.
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._room = threading.Semaphore(max(1, slots))
        self._running: set[str] = set()
        self._delivering: set[str] = set()
        self._parts: set[str] = set()
        self._accepted: set[str] = set()
        self._computing: list[_Computing] = []
        self._sending: dict[str, CancelToken] = {}
        self._pool = ThreadPoolExecutor(max_workers=max(1, slots) + _DELIVERIES, thread_name_prefix="light")

    @property
    def free_slots(self) -> int:
        """How many more tasks may be offered; a cancelled task keeps its slot until its code has stopped."""
        with self._lock:
            taken = self._running | {each.tokens[0] for each in self._computing}
            return self._slots - len(taken) - max(0, len(self._delivering) - _DELIVERIES)

    @property
    def delivering(self) -> tuple[str, ...]:
        """Tokens of computed tasks whose results are being delivered."""
        with self._lock:
            return tuple(self._delivering)

    @property
    def busy(self) -> bool:
        """Whether a task is running whose end is not in the outbox yet."""
        with self._lock:
            return bool(self._running or self._delivering or self._accepted)

    @property
    def holding(self) -> tuple[str, ...]:
        """Tokens of running tasks that were accepted."""
        with self._lock:
            return tuple(self._accepted)

    def run(self, batch: Sequence[tuple[LightExecutor, Offer]]) -> None:
        """Start tasks, and wait a moment to report quick ones in one exchange; accept the slower ones."""
        with self._lock:
            new = [(executor, offer) for executor, offer in batch if not self._wanted(offer.token)]
            self._running.update(offer.token for _, offer in new)
            self._parts.update(part.token for _, offer in new for part in offer.merged)
        futures: dict[Future[None], Offer] = {
            self._pool.submit(self._run_one, executor, offer): offer for executor, offer in new
        }
        _, slow = wait(futures, timeout=_LINGER_S)
        for future in slow:
            offer = futures[future]
            logger.info("Accepted task %s (%s), attempt %d.", offer.task_id, offer.kind, offer.attempt)
            for token in _tokens(offer):
                self._accept(token)

    def drop(self, token: str) -> None:
        """Deliver nothing for a token, and signal its code to stop."""
        with self._news:
            self._let_go(token)
            self._accepted.discard(token)
        self._outbox.forget(token)

    def apply_desired(self, desired: Desired) -> None:
        """Apply the desired state: a cancel ends a task immediately, even if its code runs; a pause has no effect."""
        if desired.action == "cancel":
            with self._news:
                wanted = self._wanted(desired.token)
                self._let_go(desired.token)
            if wanted:
                reason = TaskReason.CANCELLED_BY_USER
                self._outbox.finish(Finish(token=desired.token, outcome="cancelled", reason=reason))
                with self._lock:
                    self._accepted.discard(desired.token)
        with self._lock:
            held = self._wanted(desired.token)
        # `run` is not confirmed for a task that is no longer held: it may have ended by a pause.
        if held or desired.action != "run":
            self._outbox.reach(Reached(token=desired.token, generation=desired.generation))

    def close(self) -> None:
        """Start nothing more, and abandon deliveries that wait for a retry."""
        with self._news:
            self._over = True
            self._news.notify_all()
            for each in (*(one.stop for one in self._computing), *self._sending.values()):
                each.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _accept(self, token: str) -> None:
        with self._lock:
            if not self._wanted(token):
                return
            self._accepted.add(token)
        self._outbox.accept(token)

    def _run_one(self, executor: LightExecutor, offer: Offer) -> None:
        trace = AttemptTrace(offer, self._spans, self._worker_id)
        with context.log_ids(task_id=offer.task_id, attempt=offer.attempt, trace_id=trace.trace_id):
            self._run_traced(executor, offer, trace)

    def _run_traced(self, executor: LightExecutor, offer: Offer, trace: AttemptTrace) -> None:
        began, began_at = time.monotonic(), time.time()
        try:
            with self._room, self._stoppable(offer) as stop:
                finish = self._delivery(offer).refusal(offer) or run_light(executor, offer, self._secrets, stop)
            if self._over and finish.outcome == "cancelled":
                raise _GivenUp
            trace.export("run", began_at, error=finish.error)
            delivering_at = time.time()
            ends = self._delivered(offer, finish)
        except _GivenUp:
            return  # the next worker does not hold it, so the server reschedules it
        except _Unwanted:
            logger.info("Task %s was cancelled or dropped before it started.", offer.task_id)
            return
        trace.export("deliver", delivering_at)
        tokens = set(_tokens(offer))
        with self._lock:
            wanted = {token for token in tokens if self._wanted(token)}
            for token in tokens:
                self._let_go(token)
        took_s = time.monotonic() - began
        for end in ends:
            if end.token in wanted:
                self._outbox.finish(end)
            _note(offer, end, took_s, reported=end.token in wanted)
        # Held until its end is in the outbox: a registration in between must not lose it.
        with self._lock:
            self._accepted -= tokens

    @contextmanager
    def _stoppable(self, offer: Offer) -> Iterator[CancelToken]:
        """Occupy a slot while code runs; yields the signal to stop it."""
        with self._lock:
            if self._over:
                raise _GivenUp
            if not any(map(self._wanted, _tokens(offer))):
                raise _Unwanted
            mine = _Computing(_tokens(offer), CancelToken())
            self._computing.append(mine)
        try:
            yield mine.stop
        finally:
            with self._lock:
                self._computing.remove(mine)
            if mine.stop.is_set():
                self._outbox.poke()  # a slot is free again

    def _delivered(self, offer: Offer, finish: Finish) -> list[Finish]:
        ends = each_end(offer, finish)
        if any(self._delivery(own).wanted(own, end) for own, end in ends):
            with self._lock:
                if offer.token in self._running:
                    self._running.discard(offer.token)
                    self._delivering.add(offer.token)
            self._outbox.poke()
        return [self._delivered_one(offer.kind, own, end) for own, end in ends]

    def _delivered_one(self, kind: str, own: Offer, end: Finish) -> Finish:
        with self._lock:
            if not self._wanted(own.token):
                return end
            stop = self._sending[own.token] = CancelToken()
        try:
            return self._delivery(own).delivered(own, kind, end, stop)
        except (_Unwanted, CancelledByToken):
            logger.info("Task %s was cancelled or dropped; its result is not delivered.", own.task_id)
            return end
        finally:
            with self._lock:
                del self._sending[own.token]
            self._outbox.held_up(own.token, None)

    def _delivery(self, offer: Offer) -> LightDelivery:
        pause, held_up = partial(self._pause, offer.token), partial(self._outbox.held_up, offer.token)
        return LightDelivery(self._transfers, self._secrets, self._worker_id, pause, held_up)

    def _pause(self, token: str, seconds: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self._over or not self._wanted(token), seconds)
            if self._over:
                raise _GivenUp
            if not self._wanted(token):
                raise _Unwanted

    def _wanted(self, token: str) -> bool:
        """Whether the end of a task is still to be reported; called under the lock."""
        return token in self._running or token in self._delivering or token in self._parts

    def _let_go(self, token: str) -> None:
        """Stop tracking a task without reporting an end; called under the lock."""
        for held in (self._running, self._delivering, self._parts):
            held.discard(token)
        if token in self._sending:
            self._sending[token].set()
        # A coalesced run is stopped only once none of its tasks is needed.
        for each in self._computing:
            if not any(map(self._wanted, each.tokens)):
                each.stop.set()
        self._news.notify_all()


class _Computing(NamedTuple):
    """Running code, even if its result is no longer needed: its tokens, and the signal to stop it."""

    tokens: tuple[str, ...]
    stop: CancelToken


class _GivenUp(Exception):
    """The worker stops before a task has ended, or while a delivery waits for a retry."""


class _Unwanted(Exception):
    """A task was cancelled or dropped while it waits for a slot, or its delivery for a retry."""


def _note(offer: Offer, end: Finish, took_s: float, *, reported: bool) -> None:
    """Log the end of a task."""
    # In the worker's log, since a light task leaves no job folder.
    ids = {offer.token: offer.task_id, **{part.token: part.task_id for part in offer.merged}}
    words = end.outcome if reported else "cancelled or dropped"
    why = f": {end.error}" if reported and end.error else ""
    logger.info("Task %s (%s) ended after %.3f s: %s%s", ids[end.token], offer.kind, took_s, words, why)


def _tokens(offer: Offer) -> tuple[str, ...]:
    return (offer.token, *(part.token for part in offer.merged))


def run_light(executor: LightExecutor, offer: Offer, secrets: Secrets, stop: CancelToken | None = None) -> Finish:
    """Run a light task and return its end, with secret values redacted; raises nothing."""
    hidden = secrets.redaction([offer.spec, *(each.spec for each in offer.merged)])
    finish = _run(executor, offer, secrets, hidden, stop or CancelToken())
    if not hidden:
        return finish
    changes = {name: hidden.value(getattr(finish, name)) for name in ("error", "detail", "result")}
    return finish.model_copy(update=changes)


def _run(executor: LightExecutor, offer: Offer, secrets: Secrets, hidden: Redaction, stop: CancelToken) -> Finish:
    try:
        result = executor.run_until(_filled(offer, secrets), stop)
    except CancelledByToken:
        return Finish(token=offer.token, outcome="cancelled", reason=TaskReason.CANCELLED_BY_USER)
    except InputError as error:
        return Finish(token=offer.token, outcome="failed", reason=TaskReason.BAD_INPUT, error=str(error))
    except Exception as error:  # noqa: BLE001 -- any error of a task is logged and reported
        trace = hidden.text(traceback.format_exc())
        logger.warning("The %s task %s failed.\n%s", offer.kind, offer.task_id, trace, exc_info=False)
        text = str(error) if isinstance(error, TunefleetError) else f"{type(error).__name__}: {error}"
        return Finish(
            token=offer.token,
            outcome="failed",
            reason=TaskReason.NETWORK if isinstance(error, UnreachableError) else TaskReason.BUG,
            error=text,
            detail=trace,
        )
    missing = _not_left(offer.spec.get("output") or {})
    if missing:
        result = {**result, "warnings": [*result.get("warnings", ()), *missing]}
    return Finish(token=offer.token, outcome="completed", reason=TaskReason.FINISHED, result=result)


def _not_left(output: Mapping[str, Any]) -> list[str]:
    """Return a warning for each requested file that a task without a folder cannot leave."""
    if not output.get("artifacts"):
        return []
    wanted = OutputSpec.model_validate(output).artifacts
    return [
        f"output.artifacts lists {name!r}, but a task that runs inside the worker leaves no files."
        for name in wanted
        if name not in ALWAYS_LEFT
    ]


def _filled(offer: Offer, secrets: Secrets) -> Offer:
    """Return an offer with secret values filled into its specs; for the executor only."""
    spec = secrets.fill(offer.spec)
    merged = tuple(each.model_copy(update={"spec": secrets.fill(each.spec)}) for each in offer.merged)
    return offer if spec is offer.spec and not merged else offer.model_copy(update={"spec": spec, "merged": merged})
