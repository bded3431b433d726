"""Messages from other threads to the thread of an attempt, and on_retry that react to them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential, wait_random

from tunefleet.client.external.interrupt import CancelToken, interruptibly
from tunefleet.errors import AuthError, ForbiddenError, UnreachableError
from tunefleet.schemas.worker_link import Command, Desired

T = TypeVar("T")
_LOOK_S: Final = 0.2


class Dropped(Exception):
    """The server revoked the attempt, or rescheduled it: end the job, deliver nothing."""


class Stopped(Exception):
    """The worker stops; the next one resumes from the state on disk."""


class Cancelled(Exception):
    """A cancel of an attempt whose job was not started, or whose delivery on_retry for a retry."""


def _never() -> bool:
    return False


def _silently(error: BaseException, for_s: float) -> None:
    """Report nothing."""


def _error_of(state: RetryCallState) -> BaseException:
    error = None if state.outcome is None else state.outcome.exception()
    assert error is not None, "only errors are retried"
    return error


class Mailbox:
    """Flags that are only ever set, the desired state, and a command queue. A drop wins over a stop."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._dropped = False
        self._stopped = False
        self._suspend = False
        self._makes_way = False
        self._acked = False
        self._point: str | None = None
        self._finished = False
        self._behind = False
        self._desired: Desired | None = None
        self._commands: deque[Command] = deque()

    def notify_acked(self, point: str | None = None) -> None:
        """Note that the server has stored the accept: the job may start."""
        self._point = point
        self._set("_acked")

    def notify_finished(self) -> None:
        """Note that the server has stored the finish: the attempt may be forgotten."""
        self._set("_finished")

    def notify_behind(self) -> None:
        """Note that the server lacks journal records that the finish covers."""
        self._set("_behind")

    def notify_dropped(self) -> None:
        """Note that the token is void."""
        self._set("_dropped")

    def notify_stop(self, *, suspend: bool) -> None:
        """Note that the worker stops, and whether it suspends its jobs."""
        with self._changed:
            self._suspend = self._suspend or suspend
        self._set("_stopped")

    def notify_preempted(self) -> None:
        """Note that the machine is being preempted: save, and release the task."""
        self._set("_makes_way")

    def set_desired(self, desired: Desired) -> None:
        """Set the desired state of the attempt; the newest generation wins."""
        with self._changed:
            if self._desired is None or desired.generation > self._desired.generation:
                self._desired = desired
                self._changed.notify_all()

    def add_command(self, command: Command) -> None:
        """Queue a command for the job."""
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    @property
    def dropped(self) -> bool:
        """Whether the token is void."""
        return self._dropped

    @property
    def stopped(self) -> bool:
        """Whether the worker stops."""
        return self._stopped

    @property
    def suspend(self) -> bool:
        """Whether the worker stops and suspends its jobs."""
        return self._stopped and self._suspend

    @property
    def makes_way(self) -> bool:
        """Whether the machine is being preempted."""
        return self._makes_way

    @property
    def desired(self) -> Desired | None:
        """The newest desired state."""
        return self._desired

    def wake(self) -> None:
        """Wake all on_retry, so that they evaluate their `unwanted` again."""
        with self._changed:
            self._changed.notify_all()

    def take_commands(self) -> list[Command]:
        """Return the commands received since the last call."""
        with self._changed:
            taken = list(self._commands)
            self._commands.clear()
        return taken

    def take_behind(self) -> bool:
        """Return whether the server reported that it is behind, and reset that."""
        with self._changed:
            behind, self._behind = self._behind, False
        return behind

    def await_ack(self) -> str | None:
        """Wait until the accept is stored, and return the rendezvous endpoint. Raises `Dropped` or `Stopped`."""
        self._until(lambda: self._acked)
        return self._point

    def await_finish_reply(self) -> bool:
        """Wait for the reply to a finish: True if it is stored, False if the server is behind."""
        self._until(lambda: self._finished or self._behind)
        return self._finished

    def pause(self, seconds: float) -> None:
        """Wait until something changes, at most this long; raises `Dropped` or `Stopped`."""
        with self._changed:
            self._check()
            self._changed.wait(seconds)
            self._check()

    def with_retries(
        self,
        act: Callable[[], T],
        *,
        fatal: tuple[type[Exception], ...] = (),
        unwanted: Callable[[], bool] = _never,
        on_retry: Callable[[BaseException, float], None] = _silently,
    ) -> T:
        """Call a function that needs the server, with retries while the server is unreachable or rejects the token.

        Args:
            on_retry: Called before each retry with the error and the seconds since the first try; may raise.
        """
        # A rejected token is retried too: the next exchange reports whether the attempt is void.
        transient = tuple(each for each in (UnreachableError, AuthError, ForbiddenError) if each not in fatal)
        retrying = Retrying(
            retry=retry_if_exception_type(transient),
            wait=wait_exponential(multiplier=0.2, max=15.0) + wait_random(0, 0.2),
            sleep=lambda seconds: self.sleep(seconds, unwanted=unwanted),
            before=self._check_before,
            before_sleep=lambda state: on_retry(_error_of(state), state.seconds_since_start or 0.0),
            reraise=True,
        )
        return retrying(act)

    def interruptibly(self, act: Callable[[CancelToken], T], check: Callable[[], None]) -> T:
        """Call a function that may block in a socket or a lock for minutes, and abandon it once it is not needed.

        Args:
            check: Called several times a second; may raise.

        Raises:
            Dropped, Stopped: During the call; also any error of `check`.
        """

        def look() -> None:
            check()
            self.pause(_LOOK_S)

        try:
            return interruptibly(act, look, self.wake)
        finally:
            self.wake()  # ends its pause between two tries

    def sleep(self, seconds: float, *, unwanted: Callable[[], bool] = _never) -> None:
        """Wait the full time, unless `Dropped`, `Stopped` or, once it is unwanted, `Cancelled` is raised."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                self._check()
                if unwanted():
                    raise Cancelled
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _set(self, flag: str) -> None:
        with self._changed:
            setattr(self, flag, True)
            self._changed.notify_all()

    def _until(self, predicate: Callable[[], bool]) -> None:
        with self._changed:
            # A predicate that holds wins over a stop: an acknowledgement that has arrived is not lost.
            self._changed.wait_for(lambda: predicate() or self._dropped or self._stopped)
            if not predicate():
                self._check()

    def _check_before(self, _: RetryCallState) -> None:
        self._check()

    def _check(self) -> None:
        if self._dropped:
            raise Dropped
        if self._stopped:
            raise Stopped
