"""A job's log in the format of the protocol: lines `[YYYY-MM-DD HH:MM:SS] text` in UTC."""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tunefleet.runtime import job_log

_STAMP: Final = re.compile(rb"^(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d+)? ?")
_PIECE_BYTES: Final = 1 << 20


class LogTimes:
    """Write times of a growing log, to the second, as `SIZE TIME` lines in a file next to it. One process writes."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._file = log.with_name(f"{log.name}.times")
        self._noted_at = 0.0
        self._sizes: list[int] = []
        self._times: list[float] = []
        self._read = 0

    def note(self, *, now: float) -> None:
        """Record the current size of the log, at most once a second."""
        if now - self._noted_at < 1.0 or not self._log.exists():
            return
        self._noted_at = now
        size = job_log.end(self._log)
        if size > self.size:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{size} {now:.1f}\n")

    @property
    def size(self) -> int:
        """Last recorded size of the log, in bytes."""
        self._look()
        return self._sizes[-1] if self._sizes else 0

    def at(self, offset: int) -> float | None:
        """Return when a byte was written, in seconds since the epoch; None if not recorded yet."""
        if offset >= self.size:
            return None
        return self._times[bisect_right(self._sizes, offset)]

    def _look(self) -> None:
        try:
            if self._file.stat().st_size == self._read:
                return
        except FileNotFoundError:
            return
        with self._file.open("rb") as file:
            file.seek(self._read)
            complete = file.read().rpartition(b"\n")[0]
        for line in complete.splitlines():
            size, _, at = line.partition(b" ")
            self._sizes.append(int(size))
            self._times.append(float(at))
        self._read += len(complete) + (1 if complete else 0)


class Stamper:
    """Prefixes lines with a timestamp: the line's own one, else its write time, else that of the previous line.

    Args:
        at: Fallback for the first line, in seconds since the epoch.
    """

    def __init__(self, at: float, times: LogTimes) -> None:
        self._now = datetime.fromtimestamp(at, UTC)
        self._times = times

    def line(self, raw: bytes, offset: int) -> str:
        """Return one line, without its line break."""
        written = self._times.at(offset)
        if written is not None:
            self._now = datetime.fromtimestamp(written, UTC)
        match = _STAMP.match(raw)
        if match is not None:
            # Trainers run on this machine and log its local time.
            local = datetime.fromisoformat(match[1].decode().replace("T", " "))
            self._now, raw = local.astimezone(UTC), raw[match.end() :]
        # A progress bar overwrites itself with carriage returns; only its last state is kept, as on a terminal.
        text = raw.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
        return f"[{self._now:%Y-%m-%d %H:%M:%S}] {text}"


def stamped(lines: Iterable[tuple[int, bytes]], at: float, times: LogTimes) -> list[str]:
    """Prefix each line, given with its offset, with a timestamp; see `Stamper`."""
    stamper = Stamper(at, times)
    return [stamper.line(line, offset) for offset, line in lines]


class LogPages:
    """Counts and reads the lines of a growing log, incrementally. Safe to share between threads.

    Line numbers do not change when the middle of the log is dropped; dropped lines are skipped.
    """

    # Lines per index entry: a page is found without reading the log from its start.
    _EVERY: Final = 1000

    def __init__(self, file: Path) -> None:
        self._file = file
        self._marks = [0]
        self._lines = 0
        self._bytes = 0
        self._dropped = self._dropped_lines = self._kept = 0
        self._lock = threading.Lock()

    def total(self) -> int:
        """Return the number of complete lines, including dropped ones."""
        with self._lock:
            return self._count()

    def _count(self) -> int:
        dropped, lines = job_log.dropped(self._file)
        if dropped != self._dropped:
            self._dropped, self._dropped_lines = dropped, lines
            self._marks, self._lines, self._bytes, self._kept = [0], 0, 0, 0
        for piece_start, piece in self._new():
            position = -1
            while (position := piece.find(b"\n", position + 1)) >= 0:
                self._lines += 1
                if piece_start + position < job_log.BEGINNING_BYTES:
                    self._kept = self._lines
                if self._lines % self._EVERY == 0:
                    self._marks.append(piece_start + position + 1)
        return self._lines + self._dropped_lines

    def page(self, offset: int, limit: int) -> tuple[list[tuple[int, bytes]], int, int]:
        """Return lines with their offsets, the number of the first one, and the total."""
        total = self.total()
        first = max(0, total + offset) if offset < 0 else min(offset, total)
        # Position among the lines in the file; after the dropped lines, numbers are larger than positions.
        place = first if first <= self._kept else max(first - self._dropped_lines, self._kept + 1)
        first = place if place <= self._kept else place + self._dropped_lines
        last = min(self._lines, place + limit)
        if place <= self._kept < last and self._dropped_lines:
            last = self._kept + 1  # no gap in the line numbers of a page
        if place >= last:
            return [], first, total
        with self._file.open("rb") as log:
            log.seek(self._marks[place // self._EVERY])
            for _ in range(place % self._EVERY):
                log.readline()
            lines = [(self._position(log.tell()), log.readline().rstrip(b"\n")) for _ in range(last - place)]
        return lines, first, total

    def _position(self, offset: int) -> int:
        return offset if offset < job_log.BEGINNING_BYTES else offset + self._dropped

    def _new(self) -> Iterator[tuple[int, bytes]]:
        try:
            with self._file.open("rb") as log:
                log.seek(self._bytes)
                while piece := log.read(_PIECE_BYTES):
                    start, self._bytes = self._bytes, self._bytes + len(piece)
                    yield start, piece
        except FileNotFoundError:
            return
