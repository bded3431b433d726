"""Two hands that keep one exchange with the server open, and send a newer one when there is news.

One hand waits in a long poll. When something changes, the other sends a newer exchange; the server answers the older
one at once, and its hand becomes the spare. An answer is handled by one hand at a time, in which no other exchange is
begun: what a handled answer brings about (a batch of light tasks) is said in one exchange, not in many.
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
_EMPTY_PAUSE_S: Final = 0.2
"""Pause after an answer that came early and said nothing, so that a confused server is not flooded."""


class Mind(Protocol):
    """Who decides what is said and what an answer means; called by one hand at a time."""

    def draft(self, wait_s: float) -> Draft:
        """Write the next request; called under the outbox's lock."""

    def handle(self, reply: ExchangeReply) -> None:
        """Act on an answer; quick, but for a batch of light tasks."""

    def register(self) -> RegisterReply:
        """Register (again) and act on what the server keeps and drops."""


class Exchanger:
    """Runs the two hands.

    Args:
        on_fatal: Told of an error that no repetition can mend, such as a revoked key; the hands have stopped.
    """

    def __init__(self, link: WorkerLink, outbox: Outbox, mind: Mind, *, on_fatal: Callable[[Exception], None]) -> None:
        self._link = link
        self._outbox = outbox
        self._mind = mind
        self._on_fatal = on_fatal
        self._turn = outbox.changed
        self._stop = threading.Event()
        self._handling = threading.Lock()
        self._on_wire = 0
        self._busy = 0
        self._away = False
        self._anew = False
        self._sent = 0
        self._heard = 0
        self._failures = 0
        self._said_version = -1
        self._wait_s = 0.0
        self._hands = [threading.Thread(target=self._hand, name=f"exchange-{side}", daemon=True) for side in "ab"]

    def start(self, hold_s: float) -> None:
        """Begin; the worker must be registered."""
        self._wait_s = hold_s
        for hand in self._hands:
            hand.start()

    def register_anew(self) -> None:
        """Register again before the next exchange: the machine has changed."""
        self._anew = True
        self._outbox.poke()

    def stop(self) -> None:
        """Stop; an exchange that hangs in its long poll is left to the process's end."""
        self._stop.set()
        with self._turn:
            self._turn.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the hands after `stop`."""
        deadline = time.monotonic() + timeout_s
        for hand in self._hands:
            hand.join(max(0.0, deadline - time.monotonic()))

    def _hand(self) -> None:
        try:
            while not self._stop.is_set():
                self._once()
        except TunefleetError as error:
            self._end(error)
        except Exception as error:
            logger.exception("The exchange with the server failed unexpectedly.")
            self._end(error)

    def _end(self, error: Exception) -> None:
        already = self._stop.is_set()
        self.stop()
        if not already:
            self._on_fatal(error)

    def _once(self) -> None:
        with self._turn:
            self._turn.wait_for(self._my_turn)
            if self._stop.is_set():
                return
            draft, number = self._take()
        started = time.monotonic()
        try:
            reply = self._send(draft)
        finally:
            with self._turn:
                self._on_wire -= 1
                self._busy += 1
        try:
            with self._handling:
                if reply is not None:
                    reply = self._without_stale_offers(reply, number)
                    self._outbox.answered(draft, reply)
                    self._mind.handle(reply)
        finally:
            with self._turn:
                self._busy -= 1
                newest = number == self._sent
                self._turn.notify_all()
        early = time.monotonic() - started < min(_EMPTY_PAUSE_S, draft.request.wait_s)
        if newest and early and reply == ExchangeReply():
            self._stop.wait(_EMPTY_PAUSE_S)

    def _without_stale_offers(self, reply: ExchangeReply, number: int) -> ExchangeReply:
        """Leave out the offers of an answer that a newer one has overtaken: what they offer may have been run since.

        What is still offered stands in the newer answer, too.
        """
        stale = number < self._heard
        self._heard = max(self._heard, number)
        return reply.model_copy(update={"offers": ()}) if stale and reply.offers else reply

    def _my_turn(self) -> bool:
        if self._stop.is_set():
            return True
        if self._busy:
            return False
        news = self._outbox.version != self._said_version
        return self._on_wire == 0 or (self._on_wire == 1 and news and not self._away)

    def _take(self) -> tuple[Draft, int]:
        draft = self._mind.draft(self._wait_s)
        self._on_wire += 1
        self._sent += 1
        self._said_version = draft.version
        return draft, self._sent

    def _send(self, draft: Draft) -> ExchangeReply | None:
        """Return the answer; `None` if the draft is stale: the server was away, or did not know the worker."""
        try:
            if not self._anew:
                return self._exchange(draft)
            self._anew = False
        except UnreachableError as error:
            if not self._stop.is_set():
                self._note_failure("The server is away, jobs go on", error)
        except NotFoundError as error:
            self._note_failure("The server does not know this worker any more", error)
        if self._stop.is_set():  # who leaves does not come back
            return None
        self._away = True
        try:
            self._register_again()
        finally:
            self._away = False
        return None

    def _exchange(self, draft: Draft) -> ExchangeReply:
        reply = self._link.exchange(draft.request)
        self._failures = 0
        return reply

    def _note_failure(self, what: str, error: TunefleetError) -> None:
        """Say the first failure in a row aloud; slow down from the second: the server answers, but cannot exchange."""
        self._failures += 1
        logger.log(logging.WARNING if self._failures == 1 else logging.DEBUG, "%s: %s", what, error)
        if self._failures > 1:
            first, longest = _BACKOFF_S
            self._stop.wait(min(longest, first * 2.0 ** min(self._failures, 16)))

    def _register_again(self) -> None:
        """Register until the server answers: it may have been restarted, or have given this worker up."""
        reply = register_patiently(self._mind, self._stop)
        if reply is not None:
            self._wait_s = reply.hold_s
            if self._failures == 1:
                logger.info("The server is back.")


def register_patiently(
    mind: Mind, stop: threading.Event, *, before_sleep: Callable[[RetryCallState], None] | None = None
) -> RegisterReply | None:
    """Register with exponential backoff and jitter while the server does not answer."""
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
                return mind.register()
    except UnreachableError:
        if not stop.is_set():
            raise
    return None
