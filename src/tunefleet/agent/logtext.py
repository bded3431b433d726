"""A job's log as the protocol has it: lines `[YYYY-MM-DD HH:MM:SS] text` in UTC."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_STAMP: Final = re.compile(rb"^(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d+)? ?")
_PIECE_BYTES: Final = 1 << 20


class Stamper:
    """Puts the time in front of lines: their own where they begin with one, else that of the line before.

    Args:
        at: When the first line was written, in seconds since the epoch, unless it says so itself.
    """

    def __init__(self, at: float) -> None:
        self._now = datetime.fromtimestamp(at, UTC)

    def line(self, raw: bytes) -> str:
        """Return one line, without its line break."""
        match = _STAMP.match(raw)
        if match is not None:
            # Trainers write their machine's local time, which is ours.
            local = datetime.fromisoformat(match[1].decode().replace("T", " "))
            self._now, raw = local.astimezone(UTC), raw[match.end() :]
        # A progress bar draws over itself; what it showed last is what a terminal would show.
        text = raw.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
        return f"[{self._now:%Y-%m-%d %H:%M:%S}] {text}"


def stamped(lines: Iterable[bytes], at: float) -> list[str]:
    """Put the time in front of each line; see `Stamper`."""
    stamper = Stamper(at)
    return [stamper.line(line) for line in lines]


class LogPages:
    """Counts and reads the lines of a growing log; a look costs what has been added. Safe to share between threads.

    Args:
        file: The log.
    """

    _EVERY: Final = 1000

    def __init__(self, file: Path) -> None:
        self._file = file
        self._marks = [0]
        self._lines = 0
        self._bytes = 0
        self._lock = threading.Lock()

    def total(self) -> int:
        """Return how many whole lines there are."""
        with self._lock:
            return self._count()

    def _count(self) -> int:
        for piece_start, piece in self._new():
            position = -1
            while (position := piece.find(b"\n", position + 1)) >= 0:
                self._lines += 1
                if self._lines % self._EVERY == 0:
                    self._marks.append(piece_start + position + 1)
        return self._lines

    def page(self, offset: int, limit: int) -> tuple[list[bytes], int, int]:
        """Return lines, the number of the first one, and how many there are.

        Args:
            offset: Number of the first line; negative counts from the end.
            limit: At most so many.
        """
        total = self.total()
        first = max(0, total + offset) if offset < 0 else min(offset, total)
        last = min(total, first + limit)
        if first >= last:
            return [], first, total
        with self._file.open("rb") as log:
            log.seek(self._marks[first // self._EVERY])
            for _ in range(first % self._EVERY):
                log.readline()
            return [log.readline().rstrip(b"\n") for _ in range(last - first)], first, total

    def _new(self) -> Iterator[tuple[int, bytes]]:
        try:
            with self._file.open("rb") as log:
                log.seek(self._bytes)
                while piece := log.read(_PIECE_BYTES):
                    start, self._bytes = self._bytes, self._bytes + len(piece)
                    yield start, piece
        except FileNotFoundError:
            return
