"""The time of a request: whatever drips in meanwhile, its connections end with it, and with who wants the answer.

A timeout of the network is one of silence: a byte now and then, in a header or in the frame of a body, passes it for
ever. So the connection is watched from outside, and shut down.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from tunefleet.client.external.interrupt import Stop, Trace
from tunefleet.errors import UnreachableError

__all__ = ["PIECE_BYTES", "Limit", "cut"]

# So much of what is sent must be taken in the time of a piece.
PIECE_BYTES: Final = 64 << 10


class Limit:
    """How long one request may take, over all the redirects that it follows; it begins when it is made.

    Args:
        seconds: How long.
        stop: Ends it early.
    """

    def __init__(self, seconds: float, stop: Stop | None = None) -> None:
        self._stop = stop or Stop()
        self._over = Stop()
        self._news = threading.Condition()
        self._watching = False
        self._seconds = seconds
        self._ends: float | None = time.monotonic() + seconds
        self._went_on = False

    def renew(self, seconds: float) -> None:
        """Let so much time begin now: something has come."""
        with self._news:
            self._seconds, self._went_on = seconds, True
            # Later is seen by whoever watches when the former time is over.
            sooner = self._ends is None or time.monotonic() + seconds < self._ends
            self._ends = time.monotonic() + seconds
            if sooner:
                self._news.notify_all()

    def rest(self) -> None:
        """Let no time pass until it is renewed: this end is busy."""
        with self._news:
            self._ends = None

    def check(self, who: str) -> None:
        """Do nothing if it was kept.

        Args:
            who: Is asked, in words.

        Raises:
            Stopped: If nobody wants the answer any more.
            UnreachableError: If the time was over.
        """
        self._stop.check()
        if self._over.is_set():
            how = "does not go on" if self._went_on else "does not end its answer"
            raise UnreachableError(f"{who} {how} within {self._seconds:g} seconds.")

    def renewed_by(self, pieces: Iterable[bytes], seconds: float) -> Iterator[bytes]:
        """Yield what is sent; each piece has so much time, and the answer after them. To make a piece costs none."""
        self.rest()
        for piece in pieces:
            self.renew(seconds)
            yield piece
            self.rest()
        self.renew(seconds)

    @contextmanager
    def watched(self) -> Iterator[Trace]:
        """End the connections of the body in time; gives what httpx is to call as the `trace` of each request."""
        with self._over.watched() as ours, self._stop.watched() as theirs:

            def trace(event: str, info: object) -> None:
                ours(event, info)
                theirs(event, info)

            self._watching = True
            threading.Thread(target=self._watch, name="limit", daemon=True).start()
            try:
                yield trace
            finally:
                with self._news:
                    self._watching = False
                    self._news.notify_all()

    def _watch(self) -> None:
        with self._news:
            while self._watching:
                left = None if self._ends is None else self._ends - time.monotonic()
                if left is not None and left <= 0:
                    self._over.set()
                    return
                self._news.wait(left)


def cut(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces that are small enough to be timed."""
    for piece in pieces:
        for at in range(0, len(piece), PIECE_BYTES):
            yield piece[at : at + PIECE_BYTES]
