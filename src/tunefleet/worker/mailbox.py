"""What other threads tell the thread of an attempt, and the waiting that hears it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential, wait_random

from tunefleet.client.external.interrupt import Stop, interruptibly
from tunefleet.errors import AuthError, ForbiddenError, UnreachableError
from tunefleet.schemas.worker_link import Command, Desired

T = TypeVar("T")
_LOOK_S: Final = 0.2


class Dropped(Exception):
    """The server gave the attempt to nobody or to somebody else: end the job, deliver nothing."""


class Stopped(Exception):
    """The worker goes; what is on disk is enough for the next one."""


class Cancelled(Exception):
    """The server wants the end of an attempt whose job was not started, or which waits for another try to deliver."""


def _never() -> bool:
    return False


def _silently(error: BaseException, for_s: float) -> None:
    """Tell nobody."""


def _error_of(state: RetryCallState) -> BaseException:
    error = None if state.outcome is None else state.outcome.exception()
    assert error is not None, "only errors are tried again"
    return error


class Mailbox:
    """Flags that only ever rise, and two queues. `drop` beats `stop` beats everything else."""

    def __init__(self) -> None:
        self._news = threading.Condition()
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

    def tell_acked(self, point: str | None = None) -> None:
        """The accept is stored: the job may start."""
        self._point = point
        self._tell("_acked")

    def tell_finished(self) -> None:
        """The finish is stored: the attempt may be forgotten."""
        self._tell("_finished")

    def tell_behind(self) -> None:
        """The server lacks journal records that the finish names."""
        self._tell("_behind")

    def tell_dropped(self) -> None:
        """The token is void."""
        self._tell("_dropped")

    def tell_stop(self, *, suspend: bool) -> None:
        """The worker goes."""
        with self._news:
            self._suspend = self._suspend or suspend
        self._tell("_stopped")

    def tell_way(self) -> None:
        """The machine is taken away soon: save, and give the task back."""
        self._tell("_makes_way")

    def tell_desired(self, desired: Desired) -> None:
        """The server wants the attempt in a certain state; the newest generation counts."""
        with self._news:
            if self._desired is None or desired.generation > self._desired.generation:
                self._desired = desired
                self._news.notify_all()

    def tell_command(self, command: Command) -> None:
        """The server has a command for the job."""
        with self._news:
            self._commands.append(command)
            self._news.notify_all()

    @property
    def dropped(self) -> bool:
        """Whether the token is void."""
        return self._dropped

    @property
    def stopped(self) -> bool:
        """Whether the worker goes."""
        return self._stopped

    @property
    def suspend(self) -> bool:
        """Whether the worker goes and the job is to be ended with it."""
        return self._stopped and self._suspend

    @property
    def makes_way(self) -> bool:
        """Whether the machine is taken away soon."""
        return self._makes_way

    @property
    def desired(self) -> Desired | None:
        """The newest wish of the server."""
        return self._desired

    def wake(self) -> None:
        """What a wait asks for by its `unwanted` may have changed."""
        with self._news:
            self._news.notify_all()

    def take_commands(self) -> list[Command]:
        """Return the commands that came since the last call."""
        with self._news:
            taken = list(self._commands)
            self._commands.clear()
        return taken

    def take_behind(self) -> bool:
        """Return whether the server said that it is behind, and forget it."""
        with self._news:
            behind, self._behind = self._behind, False
        return behind

    def await_ack(self) -> str | None:
        """Wait until the accept is stored, and return where the gang meets. Raises `Dropped` or `Stopped`."""
        self._until(lambda: self._acked)
        return self._point

    def await_verdict(self) -> bool:
        """Wait for the answer to a finish: `True` if it is stored, `False` if the server is behind."""
        self._until(lambda: self._finished or self._behind)
        return self._finished

    def pause(self, seconds: float) -> None:
        """Wait unless something comes; raises `Dropped` or `Stopped`."""
        with self._news:
            self._check()
            self._news.wait(seconds)
            self._check()

    def patiently(
        self,
        act: Callable[[], T],
        *,
        but: tuple[type[Exception], ...] = (),
        unwanted: Callable[[], bool] = _never,
        waits: Callable[[BaseException, float], None] = _silently,
    ) -> T:
        """Do something that needs the server, again and again while it is away or the token is in doubt.

        A refused token is not an end by itself: the next exchange says whether the attempt is void.

        Args:
            waits: Told before each further try why it is needed, and for how many seconds it has failed; may raise.
        """
        fleeting = tuple(each for each in (UnreachableError, AuthError, ForbiddenError) if each not in but)
        retrying = Retrying(
            retry=retry_if_exception_type(fleeting),
            wait=wait_exponential(multiplier=0.2, max=15.0) + wait_random(0, 0.2),
            sleep=lambda seconds: self.pause_whole(seconds, unwanted=unwanted),
            before=self._check_before,
            before_sleep=lambda state: waits(_error_of(state), state.seconds_since_start or 0.0),
            reraise=True,
        )
        return retrying(act)

    def interruptibly(self, act: Callable[[Stop], T], check: Callable[[], None]) -> T:
        """Do something that may sit in a socket or a lock for minutes, and leave it alone once it is not wanted.

        Args:
            check: Called several times a second; may raise.

        Raises:
            Dropped, Stopped: While it is done; what `check` raises, as well.
        """

        def look() -> None:
            check()
            self.pause(_LOOK_S)

        try:
            return interruptibly(act, look, self.wake)
        finally:
            self.wake()  # its pause between two tries

    def pause_whole(self, seconds: float, *, unwanted: Callable[[], bool] = _never) -> None:
        """Wait that long whatever comes, but for `Dropped` and `Stopped`; raises `Cancelled` once it is unwanted."""
        deadline = time.monotonic() + seconds
        with self._news:
            while True:
                self._check()
                if unwanted():
                    raise Cancelled
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._news.wait(left)

    def _tell(self, flag: str) -> None:
        with self._news:
            setattr(self, flag, True)
            self._news.notify_all()

    def _until(self, predicate: Callable[[], bool]) -> None:
        with self._news:
            self._news.wait_for(lambda: predicate() or self._dropped or self._stopped)
            if not predicate():
                self._check()

    def _check_before(self, _: RetryCallState) -> None:
        self._check()

    def _check(self) -> None:
        if self._dropped:
            raise Dropped
        if self._stopped:
            raise Stopped
