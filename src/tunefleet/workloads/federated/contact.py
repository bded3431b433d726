"""Requests to a server that may be unreachable for minutes: retried with backoff, logged once."""

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
# Caps the backoff: a server that is back is noticed within half a minute.
_MAX_PAUSE_S = 30.0
# `ArtifactError` too: a file damaged in transit may arrive intact the next time.
_RETRYABLE = (UnreachableError, ConflictError, StoreError, MachineError, ArtifactError)


class SessionEnded(Exception):
    """The result of the request is no longer needed."""


class Reachability:
    """Logs once that the server is unreachable, and once that it is back; shared by the threads of a session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost_at: float | None = None

    def lost(self, error: BaseException | None) -> None:
        """Log that the server does not respond, unless it is known."""
        with self._lock:
            if self._lost_at is None:
                self._lost_at = time.monotonic()
                logger.warning("%s Training continues and will sync when the server is back.", error)

    def found(self) -> None:
        """Log that the server answers again, if it did not before."""
        with self._lock:
            if self._lost_at is not None:
                away_s = time.monotonic() - self._lost_at
                self._lost_at = None
                logger.warning("The federation's server answers again, after %.0f s.", away_s)


class RetryPolicy:
    """Repeats a request until the server answers, with a result or a refusal.

    Args:
        pause: Waits the given number of seconds; raises to end the retries.
    """

    def __init__(self, reachability: Reachability, pause: Callable[[float], None], *, first_s: float = 0.5) -> None:
        self._reachability = reachability
        self._pause = pause
        self._error: BaseException | None = None
        self._wait = wait_random_exponential(multiplier=first_s, max=_MAX_PAUSE_S)

    def call(self, question: Callable[[], T]) -> T:
        """Send a request, with retries.

        Raises:
            TunefleetError: The server's refusal, if a retry would not help.
            Exception: The exception raised by `pause`.
        """
        tries = Retrying(
            retry=retry_if_exception(is_retryable),
            wait=self._wait,
            before_sleep=self._note,
            sleep=self._rest,
            reraise=True,
        )
        try:
            answer = tries(question)
        except TunefleetError:
            self._reachability.found()  # a refusal means that the server is reachable
            raise
        self._reachability.found()
        return answer

    def _note(self, state: RetryCallState) -> None:
        self._error = state.outcome.exception() if state.outcome is not None else None

    def _rest(self, seconds: float) -> None:
        self._pause(0.0)  # raises if the session has ended, before a warning would be logged
        self._reachability.lost(self._error)
        self._pause(seconds)


def is_retryable(error: BaseException) -> bool:
    """Return whether a retry may succeed: after network errors, a busy server, and internal server errors."""
    # A plain `TunefleetError` is an answer without a known code: an internal error of the server or a proxy.
    if isinstance(error, GoneError):
        return False
    return isinstance(error, _RETRYABLE) or type(error) is TunefleetError
