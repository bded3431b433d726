"""Two polling threads that keep one exchange with the server open, and send a newer one when the state changes.

One thread waits in a long poll. When something changes, the other sends a newer exchange; the server answers the older
one immediately, and its thread becomes the spare.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_when_event_set,
    wait_exponential,
    wait_random,
)
from tenacity.nap import sleep_using_event

from tunefleet.errors import NotFoundError, TunefleetError, UnreachableError
from tunefleet.schemas.worker_link import ExchangeReply, RegisterReply
from tunefleet.transport.base import WorkerLink
from tunefleet.worker.outbox import Draft, Outbox

logger = logging.getLogger(__name__)

_BACKOFF_S: Final = (0.1, 2.0)
# Pause after an early and empty reply, so that a misbehaving server is not flooded with requests.
_EMPTY_PAUSE_S: Final = 0.2


class ExchangeDelegate(Protocol):
    """Builds requests and handles replies; called by one thread at a time."""

    def draft(self, wait_s: float) -> Draft:
        """Build the next request; called under the outbox's lock."""

    def handle(self, reply: ExchangeReply) -> None:
        """Handle a reply; quick, except for a batch of light tasks."""

    def register(self) -> RegisterReply:
        """Register (again), and drop the attempts that the server has dropped."""


class Exchanger:
    """Runs the two polling threads.

    Args:
        on_fatal: Called with an error that a retry cannot fix, such as a revoked key, after the threads have stopped.
    """

    def __init__(
        self, link: WorkerLink, outbox: Outbox, delegate: ExchangeDelegate, *, on_fatal: Callable[[Exception], None]
    ) -> None:
        self._link = link
        self._outbox = outbox
        self._delegate = delegate
        self._on_fatal = on_fatal
        self._outbox_changed = outbox.changed
        self._stop = threading.Event()
        self._handling = threading.Lock()
        self._in_flight = 0
        self._busy = 0
        self._unreachable = False
        self._must_register = False
        self._sent = 0
        self._last_reply = 0
        self._failures = 0
        self._sent_version = -1
        self._wait_s = 0.0
        # Daemons: a request may hang in its long poll when the process exits.
        self._threads = [threading.Thread(target=self._run, name=f"exchange-{side}", daemon=True) for side in "ab"]

    def start(self, hold_s: float) -> None:
        """Start polling; the worker must be registered."""
        self._wait_s = hold_s
        for thread in self._threads:
            thread.start()

    def request_registration(self) -> None:
        """Register again before the next exchange, since the machine has changed."""
        self._must_register = True
        self._outbox.poke()

    def stop(self) -> None:
        """Stop; does not wait for an exchange that is in its long poll."""
        self._stop.set()
        with self._outbox_changed:
            self._outbox_changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads after `stop`."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._exchange_once()
        except TunefleetError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("The exchange with the server failed unexpectedly.")
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        already = self._stop.is_set()
        self.stop()
        if not already:
            self._on_fatal(error)

    def _exchange_once(self) -> None:
        with self._outbox_changed:
            self._outbox_changed.wait_for(self._may_send)
            if self._stop.is_set():
                return
            draft, number = self._next_draft()
        started = time.monotonic()
        try:
            # Outside the lock: the long poll must not block the other thread's newer exchange.
            reply = self._send(draft)
        finally:
            with self._outbox_changed:
                self._in_flight -= 1
                self._busy += 1
        try:
            # One reply at a time, and no exchange starts meanwhile (`_busy`): the results of a batch of light tasks
            # are reported in one exchange instead of many.
            with self._handling:
                if reply is not None:
                    reply = self._without_stale_offers(reply, number)
                    self._outbox.answered(draft, reply)
                    self._delegate.handle(reply)
        finally:
            with self._outbox_changed:
                self._busy -= 1
                newest = number == self._sent
                self._outbox_changed.notify_all()
        early = time.monotonic() - started < min(_EMPTY_PAUSE_S, draft.request.wait_s)
        if newest and early and reply == ExchangeReply():
            self._stop.wait(_EMPTY_PAUSE_S)

    def _without_stale_offers(self, reply: ExchangeReply, number: int) -> ExchangeReply:
        """Remove the offers of a reply that a newer one has overtaken."""
        # An overtaken offer may have been run already; if it is still open, the newer reply contains it too.
        stale = number < self._last_reply
        self._last_reply = max(self._last_reply, number)
        return reply.model_copy(update={"offers": ()}) if stale and reply.offers else reply

    def _may_send(self) -> bool:
        if self._stop.is_set():
            return True
        if self._busy:
            return False
        changed = self._outbox.version != self._sent_version
        return self._in_flight == 0 or (self._in_flight == 1 and changed and not self._unreachable)

    def _next_draft(self) -> tuple[Draft, int]:
        draft = self._delegate.draft(self._wait_s)
        self._in_flight += 1
        self._sent += 1
        self._sent_version = draft.version
        return draft, self._sent

    def _send(self, draft: Draft) -> ExchangeReply | None:
        """Return the reply; None if the draft is stale: the server was unreachable, or did not know the worker."""
        try:
            if not self._must_register:
                return self._exchange(draft)
            self._must_register = False
        except UnreachableError as error:
            if not self._stop.is_set():
                self._note_failure("Server unreachable, jobs keep running", error)
        except NotFoundError as error:
            self._note_failure("The server no longer knows this worker", error)
        if self._stop.is_set():  # a worker that is leaving must not register again
            return None
        # Keeps the other thread from sending: the server is unreachable, or does not know this worker.
        self._unreachable = True
        try:
            self._register_again()
        finally:
            self._unreachable = False
        return None

    def _exchange(self, draft: Draft) -> ExchangeReply:
        reply = self._link.exchange(draft.request)
        self._failures = 0
        return reply

    def _note_failure(self, what: str, error: TunefleetError) -> None:
        """Log the first failure in a row as a warning; back off from the second on."""
        self._failures += 1
        logger.log(logging.WARNING if self._failures == 1 else logging.DEBUG, "%s: %s", what, error)
        if self._failures > 1:
            # Registration succeeds each time while exchanges fail, so its own backoff never grows.
            first, longest = _BACKOFF_S
            self._stop.wait(min(longest, first * 2.0 ** min(self._failures, 16)))

    def _register_again(self) -> None:
        """Register until the server answers: it may have been restarted, or have declared this worker lost."""
        reply = register_patiently(self._delegate, self._stop)
        if reply is not None:
            self._wait_s = reply.hold_s
            if self._failures == 1:
                logger.info("Server reachable again.")


def register_patiently(
    delegate: ExchangeDelegate, stop: threading.Event, *, before_sleep: Callable[[RetryCallState], None] | None = None
) -> RegisterReply | None:
    """Register with exponential backoff and jitter while the server does not respond; None if stopped."""
    first, longest = _BACKOFF_S
    try:
        for attempt in Retrying(
            retry=retry_if_exception_type(UnreachableError),
            wait=wait_exponential(multiplier=first, max=longest) + wait_random(0, 2 * first),
            stop=stop_when_event_set(stop),
            sleep=sleep_using_event(stop),
            before_sleep=before_sleep,
            reraise=True,
        ):
            with attempt:
                return delegate.register()
    except UnreachableError:
        if not stop.is_set():
            raise
    return None
