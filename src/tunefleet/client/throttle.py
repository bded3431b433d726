"""Limits the transfer rate of a process in bytes per second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tunefleet.client.call import Sink

# Longest duration of a piece: a steady stream of small pieces keeps receivers from timing out.
_PIECE_S: Final = 0.25
_MIN_PIECE_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Ticks:
    """Clock of a throttle; replaceable in tests."""

    now: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)


class Throttle:
    """A leaky bucket without burst: each byte waits until the previous ones have passed. Thread-safe.

    Args:
        bytes_per_s: The rate.
    """

    def __init__(self, bytes_per_s: float, *, ticks: Ticks | None = None) -> None:
        self.bytes_per_s = bytes_per_s
        self._ticks = ticks or Ticks()
        self._lock = threading.Lock()
        self._free_at = 0.0

    @property
    def piece_bytes(self) -> int:
        """Size of the pieces that pass in one step."""
        return max(_MIN_PIECE_BYTES, int(self.bytes_per_s * _PIECE_S))

    def take(self, count: int) -> None:
        """Wait until `count` bytes may pass."""
        with self._lock:
            begin = max(self._ticks.now(), self._free_at)
            self._free_at = begin + count / self.bytes_per_s
            # Reserve the slot under the lock but sleep outside it: other threads queue behind the reservation.
            wait_s = self._free_at - self._ticks.now()
        if wait_s > 0:
            self._ticks.sleep(wait_s)

    def paced(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield bytes in small pieces at the limited rate."""
        for piece in pieces:
            view = memoryview(piece)
            for start in range(0, len(view), self.piece_bytes):
                part = view[start : start + self.piece_bytes]
                self.take(len(part))
                yield bytes(part)

    def sink(self, sink: Sink) -> Sink:
        """Return a sink with a limited rate."""
        return _PacedSink(sink, self)


@dataclass(frozen=True, slots=True)
class _PacedSink:
    """Waits after each piece, so that TCP flow control slows the sender down."""

    sink: Sink
    throttle: Throttle

    def write(self, data: bytes, /) -> None:
        self.sink.write(data)
        for start in range(0, len(data), self.throttle.piece_bytes):
            self.throttle.take(min(self.throttle.piece_bytes, len(data) - start))
