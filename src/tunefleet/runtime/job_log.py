"""`train.log` with a size limit: its beginning and its newest part are kept, the middle is dropped.

The job's processes write to the file directly, so that their output does not depend on another process. The job's
parent process copies the newest part to `train.log.1` and truncates the file after its beginning; the job's processes
append, and so continue there. A note at the cut counts the dropped bytes.

A position counts every byte that was ever logged, including dropped ones, so that a reader can follow the log across a
cut. Standard library only, since the parent process of each job imports it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

# Size of the beginning, which is never dropped.
BEGINNING_BYTES = 8 << 20
LIMIT_BYTES = 256 << 20
SMALLEST_LIMIT_BYTES = 4 * BEGINNING_BYTES
_NOTE = (
    b"\n--- %s bytes (%s lines) of this log are dropped here: it is kept within %s bytes (TUNEFLEET_JOB_LOG_BYTES).%s "
)
# End of the note before and after the file is truncated: until then, the counted bytes are still there.
_CUTTING, _CUT = b"...\n", b"---\n"
_ASIDE = b" The newest of them are in train.log.1."
_COUNT = re.compile(
    rb"\A\n--- (\d[\d,]*) bytes \((\d[\d,]*) lines\) of this log are dropped here: [^\n]* (---|\.\.\.)\n"
)
_COUNT_BYTES = 256
_PIECE_BYTES = 1 << 20
# A cut takes milliseconds; a note that stays unfinished for longer belongs to a process that was killed.
_CUTTING_S = 2.0


def shorten(log: Path, limit_bytes: int) -> bool:
    """Cut the log if it is over its limit; only one process at a time may call this.

    Returns:
        Whether it was cut.

    Raises:
        OSError: If it cannot be cut. A failed copy of the newest part, as on a full disk, does not prevent the cut.
    """
    newest = limit_bytes // 4
    try:
        if log.stat().st_size <= limit_bytes - newest:
            return False
    except FileNotFoundError:
        return False
    with log.open("r+b") as file:
        fd = file.fileno()
        _finish(fd)
        (gone, lines), copied = _dropped(fd), _copy_newest(log, newest)
        # Bytes that were written during the copy are dropped too, and counted.
        size, more = _count_lines(fd)
        numbers = tuple(f"{number:,}".encode() for number in (size + gone - BEGINNING_BYTES, lines + more, limit_bytes))
        # Note, truncation, mark: a reader that comes in between waits for the mark, and miscounts nothing.
        note = _NOTE % (*numbers, _ASIDE if copied else b"")
        behind = BEGINNING_BYTES + os.pwrite(fd, note + _CUTTING, BEGINNING_BYTES)
        os.ftruncate(fd, behind)
        os.pwrite(fd, _CUT, behind - len(_CUT))
    return True


def end(log: Path) -> int:
    """Return the position after the last byte; 0 without a log."""
    try:
        with log.open("rb") as file:
            return os.fstat(file.fileno()).st_size + _dropped(file.fileno())[0]
    except FileNotFoundError:
        return 0


def dropped(log: Path) -> tuple[int, int]:
    """Return the number of dropped bytes and lines."""
    try:
        with log.open("rb") as file:
            return _dropped(file.fileno())
    except FileNotFoundError:
        return 0, 0


def read(log: Path, position: int, most: int) -> tuple[int, bytes]:
    """Read from a position, or from the end of the dropped part if the position is in it.

    Args:
        most: Maximum number of bytes; fewer may be returned even if there are more.

    Returns:
        The position of the first byte, and the bytes. The position is later than requested if that part was dropped,
        and earlier if the log is shorter.
    """
    try:
        with log.open("rb") as file:
            while True:
                gone, _ = _dropped(file.fileno())
                if not gone:
                    begin, length = position, most
                elif position < BEGINNING_BYTES:
                    begin, length = position, min(most, BEGINNING_BYTES - position)
                else:
                    # Bytes written during the truncation are not counted, so the offset may be past the end.
                    last = os.fstat(file.fileno()).st_size
                    begin, length = min(max(position - gone, BEGINNING_BYTES), last), most
                data = os.pread(file.fileno(), length, begin)
                if _dropped(file.fileno())[0] == gone:  # otherwise it was cut meanwhile: read again
                    return (begin if begin < BEGINNING_BYTES else begin + gone), data
    except FileNotFoundError:
        return position, b""


def tail(log: Path, since: int, most: int) -> bytes:
    """Return the newest bytes, including those that were recently moved to `train.log.1`."""
    begin = max(since, end(log) - most)
    at, data = read(log, begin, most)
    if at > begin:
        with contextlib.suppress(FileNotFoundError), _aside(log).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - (at - begin)))
            data = file.read() + data
    return data[-most:]


def _dropped(fd: int) -> tuple[int, int]:
    patience = time.monotonic() + _CUTTING_S
    while True:
        found = _COUNT.match(os.pread(fd, _COUNT_BYTES, BEGINNING_BYTES))
        if found and found[3] == _CUTTING[:3] and time.monotonic() < patience:
            time.sleep(0.001)
            continue
        return (_number(found[1]), _number(found[2])) if found else (0, 0)


def _number(text: bytes) -> int:
    return int(text.replace(b",", b""))


def _count_lines(fd: int) -> tuple[int, int]:
    """Return the size of the log, and the number of lines after its beginning."""
    position, lines = BEGINNING_BYTES, 0
    while (left := os.fstat(fd).st_size - position) > 0:
        piece = os.pread(fd, min(left, _PIECE_BYTES), position)
        position, lines = position + len(piece), lines + piece.count(b"\n")
    return position, lines


def _finish(fd: int) -> None:
    """Complete the note of a cut whose process was killed."""
    found = _COUNT.match(os.pread(fd, _COUNT_BYTES, BEGINNING_BYTES))
    if found and found[3] == _CUTTING[:3]:
        os.pwrite(fd, _CUT, BEGINNING_BYTES + found.end() - len(_CUT))


def _aside(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")


def _copy_newest(log: Path, newest: int) -> bool:
    """Copy the newest part to `train.log.1`; returns whether that succeeded."""
    aside = _aside(log)
    with log.open("rb") as source:
        begin = max(BEGINNING_BYTES, os.fstat(source.fileno()).st_size - newest)
        source.seek(begin)
        left = newest
        try:
            with aside.open("wb") as copy:
                while left and (piece := source.read(min(left, _PIECE_BYTES))):
                    copy.write(piece)
                    left -= len(piece)
        except OSError:
            aside.unlink(missing_ok=True)  # the log needs the space
            return False
        return True
