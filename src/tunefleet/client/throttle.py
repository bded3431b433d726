"""Hold transfers to a number of bytes a second, all of one process together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tunefleet.client.call import Sink

# A piece takes no longer than this, so that a slow line is a steady one and no receiver gives up.
_PIECE_S: Final = 0.25
_MIN_PIECE_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Ticks:
    """Where a throttle's time comes from; a test brings its own."""

    now: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)


class Throttle:
    """A bucket that holds nothing: each byte waits until those before it have passed. Shared between threads.

    Args:
        bytes_per_s: How much passes in a second.
    """

    def __init__(self, bytes_per_s: float, *, ticks: Ticks | None = None) -> None:
        self.bytes_per_s = bytes_per_s
        self._ticks = ticks or Ticks()
        self._lock = threading.Lock()
        self._free_at = 0.0

    @property
    def piece_bytes(self) -> int:
        """How much is let through at once."""
        return max(_MIN_PIECE_BYTES, int(self.bytes_per_s * _PIECE_S))

    def take(self, count: int) -> None:
        """Wait until so many bytes may pass."""
        with self._lock:
            begin = max(self._ticks.now(), self._free_at)
            self._free_at = begin + count / self.bytes_per_s
            wait_s = self._free_at - self._ticks.now()
        if wait_s > 0:
            self._ticks.sleep(wait_s)

    def paced(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield bytes in small pieces, each when its time has come."""
        for piece in pieces:
            view = memoryview(piece)
            for start in range(0, len(view), self.piece_bytes):
                part = view[start : start + self.piece_bytes]
                self.take(len(part))
                yield bytes(part)

    def sink(self, sink: Sink) -> Sink:
        """Return a sink that takes no faster."""
        return _PacedSink(sink, self)


@dataclass(frozen=True, slots=True)
class _PacedSink:
    """Waits behind each piece, so that the sender has to wait too."""

    sink: Sink
    throttle: Throttle

    def write(self, data: bytes, /) -> None:
        self.sink.write(data)
        for start in range(0, len(data), self.throttle.piece_bytes):
            self.throttle.take(min(self.throttle.piece_bytes, len(data) - start))
