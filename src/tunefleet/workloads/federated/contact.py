"""Talking to a server that may be away for minutes: again and again, ever more patiently, and said once in the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from tunefleet.errors import (
    ArtifactError,
    ConflictError,
    GoneError,
    MachineError,
    StoreError,
    TunefleetError,
    UnreachableError,
)

logger = logging.getLogger("tunefleet.federation")

T = TypeVar("T")
_LONGEST_PAUSE_S = 30.0
# What was damaged on its way may arrive whole the next time.
_PASSING = (UnreachableError, ConflictError, StoreError, MachineError, ArtifactError)


class Ended(Exception):
    """Nobody wants the answer any more."""


class Contact:
    """Tells once that the server is away, and once that it is back; shared by the threads that talk to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost_at: float | None = None

    def lost(self, error: BaseException | None) -> None:
        """Say that it does not answer, unless that is known."""
        with self._lock:
            if self._lost_at is None:
                self._lost_at = time.monotonic()
                logger.warning("%s The training goes on, and catches up when the server is back.", error)

    def found(self) -> None:
        """Say that it answers, if it did not."""
        with self._lock:
            if self._lost_at is not None:
                away_s = time.monotonic() - self._lost_at
                self._lost_at = None
                logger.warning("The federation's server answers again, after %.0f s.", away_s)


class Patience:
    """Asks until there is an answer, of whatever kind.

    Args:
        pause: Waits so many seconds; raises to end it all.
    """

    def __init__(self, contact: Contact, pause: Callable[[float], None], *, first_s: float = 0.5) -> None:
        self._contact = contact
        self._pause = pause
        self._error: BaseException | None = None
        self._wait = wait_random_exponential(multiplier=first_s, max=_LONGEST_PAUSE_S)

    def ask(self, question: Callable[[], T]) -> T:
        """Ask, again if need be.

        Raises:
            TunefleetError: What the server answered, if asking again would not help.
            Exception: What `pause` raised.
        """
        tries = Retrying(
            retry=retry_if_exception(passes), wait=self._wait, before_sleep=self._note, sleep=self._rest, reraise=True
        )
        try:
            answer = tries(question)
        except TunefleetError:
            self._contact.found()  # a refusal is an answer
            raise
        self._contact.found()
        return answer

    def _note(self, state: RetryCallState) -> None:
        self._error = state.outcome.exception() if state.outcome is not None else None

    def _rest(self, seconds: float) -> None:
        self._pause(0.0)  # who wants no answer any more need not hear that there is none
        self._contact.lost(self._error)
        self._pause(seconds)


def passes(error: BaseException) -> bool:
    """Whether a failure may be over at the next try: the network's, a busy server's, one of the server's own."""
    if isinstance(error, GoneError):
        return False
    return isinstance(error, _PASSING) or type(error) is TunefleetError
