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
from tunefleet.lifecycle.task import TaskReason
from tunefleet.wire.link import Finish, Offer
from tunefleet.worker.outbox import Outbox

logger = logging.getLogger(__name__)

_LINGER_S: Final = 0.005
"""How long a batch may take to be said in one exchange; what takes longer is accepted and said later."""


class LightTasks:
    """A small pool. A task that is lost with the worker was never accepted, or is placed anew as lost.

    The lock is never held while the outbox is called: a draft is written under the outbox's lock and asks for slots.

    Args:
        outbox: Takes accepts and finishes.
        slots: Tasks at a time.
    """

    def __init__(self, outbox: Outbox, slots: int) -> None:
        self._outbox = outbox
        self._slots = slots
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._accepted: set[str] = set()
        self._pool = ThreadPoolExecutor(max_workers=max(1, slots), thread_name_prefix="light")

    @property
    def free_slots(self) -> int:
        """How many more tasks may be offered."""
        return self._slots - len(self._running)

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
        futures: dict[Future[None], str] = {
            self._pool.submit(self._run_one, executor, offer): offer.token for executor, offer in new
        }
        _, slow = wait(futures, timeout=_LINGER_S)
        for future in slow:
            self._accept(futures[future])

    def drop(self, token: str) -> None:
        """Deliver nothing for a token; the code of a light task cannot be interrupted."""
        with self._lock:
            self._running.discard(token)
            self._accepted.discard(token)
        self._outbox.forget(token)

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _accept(self, token: str) -> None:
        with self._lock:
            if token not in self._running:
                return
            self._accepted.add(token)
        self._outbox.accept(token)

    def _run_one(self, executor: LightExecutor, offer: Offer) -> None:
        finish = run_light(executor, offer)
        with self._lock:
            wanted = offer.token in self._running
            self._running.discard(offer.token)
        if wanted:
            self._outbox.finish(finish)
        # Held until its end is in the outbox: a registration in between must not give it up.
        with self._lock:
            self._accepted.discard(offer.token)


def run_light(executor: LightExecutor, offer: Offer) -> Finish:
    """Run a light task and put its end into words; raises nothing."""
    try:
        result = executor.run(offer)
    except InputError as error:
        return Finish(token=offer.token, outcome="failed", reason=TaskReason.BAD_INPUT, error=str(error))
    except Exception as error:
        logger.warning("The %s task %s failed.", offer.kind, offer.task_id, exc_info=True)
        text = str(error) if isinstance(error, TunefleetError) else f"{type(error).__name__}: {error}"
        return Finish(
            token=offer.token,
            outcome="failed",
            reason=TaskReason.BUG,
            error=text,
            detail=traceback.format_exc(),
        )
    return Finish(token=offer.token, outcome="completed", reason=TaskReason.FINISHED, result=result)
