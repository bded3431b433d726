"""Light tasks: they run in the worker, leave nothing on disk, and their finish implies their accept."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from tunefleet.errors import InputError, TunefleetError
from tunefleet.executors.base import LightExecutor
from tunefleet.jobs.secrets import Redaction, Secrets
from tunefleet.lifecycle.task import TaskReason
from tunefleet.wire.link import Finish, Offer
from tunefleet.worker.light_delivery import LightDelivery
from tunefleet.worker.outbox import Outbox
from tunefleet.worker.parts import each_end
from tunefleet.worker.transfers import Transfers

logger = logging.getLogger(__name__)

_LINGER_S: Final = 0.005
"""How long a batch may take to be said in one exchange; what takes longer is accepted and said later."""


class LightTasks:
    """A small pool. A task that is lost with the worker was never accepted, or is placed anew as lost.

    The lock is never held while the outbox is called: a draft is written under the outbox's lock and asks for slots.

    Args:
        outbox: Takes accepts and finishes.
        slots: Tasks at a time.
        secrets: The values that a spec may name.
        transfers: Where a document may want its results.
        worker_id: Who computes, for the results.
    """

    def __init__(
        self,
        outbox: Outbox,
        slots: int,
        secrets: Secrets | None = None,
        transfers: Transfers | None = None,
        *,
        worker_id: str = "",
    ) -> None:
        self._outbox = outbox
        self._slots = slots
        self._secrets = secrets or Secrets({})
        self._over = threading.Event()
        self._delivery = LightDelivery(transfers or Transfers(), self._secrets, worker_id, self._pause)
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._parts: set[str] = set()
        self._accepted: set[str] = set()
        self._pool = ThreadPoolExecutor(max_workers=max(1, slots), thread_name_prefix="light")

    @property
    def free_slots(self) -> int:
        """How many more tasks may be offered."""
        return self._slots - len(self._running)

    @property
    def busy(self) -> bool:
        """Whether a task runs whose end is not in the outbox yet."""
        with self._lock:
            return bool(self._running or self._accepted)

    @property
    def holding(self) -> tuple[str, ...]:
        """Tokens of running tasks that the server knows as accepted."""
        with self._lock:
            return tuple(self._accepted)

    def run(self, batch: Sequence[tuple[LightExecutor, Offer]]) -> None:
        """Start tasks and linger a moment, so that quick ones are said together; the slow ones are accepted."""
        with self._lock:
            new = [(executor, offer) for executor, offer in batch if offer.token not in self._running]
            self._running.update(offer.token for _, offer in new)
            self._parts.update(part.token for _, offer in new for part in offer.merged)
        futures: dict[Future[None], Offer] = {
            self._pool.submit(self._run_one, executor, offer): offer for executor, offer in new
        }
        _, slow = wait(futures, timeout=_LINGER_S)
        for future in slow:
            for token in _tokens(futures[future]):
                self._accept(token)

    def drop(self, token: str) -> None:
        """Deliver nothing for a token; the code of a light task cannot be interrupted."""
        with self._lock:
            self._running.discard(token)
            self._parts.discard(token)
            self._accepted.discard(token)
        self._outbox.forget(token)

    def close(self) -> None:
        """Begin nothing more, and give up deliveries that wait for another try."""
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _accept(self, token: str) -> None:
        with self._lock:
            if token not in self._running | self._parts:
                return
            self._accepted.add(token)
        self._outbox.accept(token)

    def _run_one(self, executor: LightExecutor, offer: Offer) -> None:
        try:
            finish = self._delivery.refusal(offer) or run_light(executor, offer, self._secrets)
            ends = [self._delivery.delivered(own, offer.kind, end) for own, end in each_end(offer, finish)]
        except _GivenUp:
            return  # the next worker on the folder does not hold it, so that it is placed anew
        tokens = set(_tokens(offer))
        with self._lock:
            wanted = tokens & (self._running | self._parts)
            self._running.discard(offer.token)
            self._parts -= tokens
        for end in ends:
            if end.token in wanted:
                self._outbox.finish(end)
        # Held until its end is in the outbox: a registration in between must not give it up.
        with self._lock:
            self._accepted -= tokens

    def _pause(self, seconds: float) -> None:
        if self._over.wait(seconds):
            raise _GivenUp


class _GivenUp(Exception):
    """The worker goes while a delivery waits for another try."""


def _tokens(offer: Offer) -> tuple[str, ...]:
    return (offer.token, *(part.token for part in offer.merged))


def run_light(executor: LightExecutor, offer: Offer, secrets: Secrets) -> Finish:
    """Run a light task and put its end into words, without the values of secrets; raises nothing."""
    hidden = secrets.redaction([offer.spec, *(each.spec for each in offer.merged)])
    finish = _run(executor, offer, secrets, hidden)
    if not hidden:
        return finish
    changes = {name: hidden.value(getattr(finish, name)) for name in ("error", "detail", "result")}
    return finish.model_copy(update=changes)


def _run(executor: LightExecutor, offer: Offer, secrets: Secrets, hidden: Redaction) -> Finish:
    try:
        result = executor.run(_filled(offer, secrets))
    except InputError as error:
        return Finish(token=offer.token, outcome="failed", reason=TaskReason.BAD_INPUT, error=str(error))
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is logged and told
        trace = hidden.text(traceback.format_exc())
        logger.warning("The %s task %s failed.\n%s", offer.kind, offer.task_id, trace, exc_info=False)
        text = str(error) if isinstance(error, TunefleetError) else f"{type(error).__name__}: {error}"
        return Finish(
            token=offer.token,
            outcome="failed",
            reason=TaskReason.BUG,
            error=text,
            detail=trace,
        )
    return Finish(token=offer.token, outcome="completed", reason=TaskReason.FINISHED, result=result)


def _filled(offer: Offer, secrets: Secrets) -> Offer:
    """Return an offer for the executor's eyes only: the values of secrets are in its specs."""
    spec = secrets.fill(offer.spec)
    merged = tuple(each.model_copy(update={"spec": secrets.fill(each.spec)}) for each in offer.merged)
    return offer if spec is offer.spec and not merged else offer.model_copy(update={"spec": spec, "merged": merged})
