"""Time limit of a request, whatever the other side sends.

Network timeouts measure silence: a byte now and then, in a header or in the framing of a body, defeats them. So a
thread watches the connection and shuts it down.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from tunefleet.client.external.interrupt import CancelToken, Trace
from tunefleet.errors import UnreachableError

__all__ = ["PIECE_BYTES", "Limit", "cut"]

# Size of the pieces of a request body that are timed.
PIECE_BYTES: Final = 64 << 10


class Limit:
    """How long one request may take, including its redirects; starts when it is created.

    Args:
        seconds: How long.
        stop: Cancels it early.
    """

    def __init__(self, seconds: float, stop: CancelToken | None = None) -> None:
        self._stop = stop or CancelToken()
        self._over = CancelToken()
        self._changed = threading.Condition()
        self._watching = False
        self._seconds = seconds
        self._ends: float | None = time.monotonic() + seconds
        self._went_on = False

    def renew(self, seconds: float) -> None:
        """Restart the limit: there was progress."""
        with self._changed:
            self._seconds, self._went_on = seconds, True
            # The watching thread sees a later deadline when the former one passes: wake it only for an earlier one.
            sooner = self._ends is None or time.monotonic() + seconds < self._ends
            self._ends = time.monotonic() + seconds
            if sooner:
                self._changed.notify_all()

    def rest(self) -> None:
        """Suspend the limit until `renew`: this end is busy."""
        with self._changed:
            self._ends = None

    def check(self, who: str) -> None:
        """Raise if the limit was exceeded.

        Args:
            who: Name of the host in the message.

        Raises:
            Stopped: If the request was cancelled.
            UnreachableError: If the time was over.
        """
        self._stop.check()
        if self._over.is_set():
            how = "made no progress" if self._went_on else "did not complete its response"
            raise UnreachableError(f"{who} {how} within {self._seconds:g} seconds.")

    def renewed_by(self, pieces: Iterable[bytes], seconds: float) -> Iterator[bytes]:
        """Yield a request body with a limit per piece and for the response; creating a piece is not timed."""
        self.rest()
        for piece in pieces:
            self.renew(seconds)
            yield piece
            self.rest()
        self.renew(seconds)

    @contextmanager
    def watched(self) -> Iterator[Trace]:
        """Shut connections down when the time is over; yields the `trace` callback of each request for httpx."""
        with self._over.watched() as on_limit, self._stop.watched() as on_stop:

            def trace(event: str, info: object) -> None:
                on_limit(event, info)
                on_stop(event, info)

            self._watching = True
            threading.Thread(target=self._watch, name="limit", daemon=True).start()
            try:
                yield trace
            finally:
                with self._changed:
                    self._watching = False
                    self._changed.notify_all()

    def _watch(self) -> None:
        with self._changed:
            while self._watching:
                left = None if self._ends is None else self._ends - time.monotonic()
                if left is not None and left <= 0:
                    self._over.set()
                    return
                self._changed.wait(left)


def cut(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces that are small enough to be timed."""
    for piece in pieces:
        for at in range(0, len(piece), PIECE_BYTES):
            yield piece[at : at + PIECE_BYTES]
