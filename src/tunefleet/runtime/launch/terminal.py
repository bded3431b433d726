"""Copies a command's output to the terminal and to a log.

If standard output is a terminal, the command gets a pseudo-terminal, so that progress bars and colors work; otherwise a
pipe.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
import threading
import tty
from pathlib import Path
from types import TracebackType

from tunefleet.runtime import job_log

_CHUNK_BYTES = 1 << 16
_REST_S = 1.0


class Tee:
    """Output of a command, copied to the terminal and to a log."""

    def __init__(self, log: Path, streams: tuple[int, int] = (1, 2)) -> None:
        self._streams = streams
        self._path = log
        self._cutting = threading.Lock()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._threads: list[threading.Thread] = []
        self._terminals: list[tuple[int, int]] = []
        self._ends: list[int] = []
        self._resized: object = None

    def __enter__(self) -> Tee:
        out, err = self._streams
        # One pseudo-terminal for both streams keeps their order.
        self._ends = [self._open(out)]
        self._ends.append(os.dup(self._ends[0]) if os.isatty(out) and os.isatty(err) else self._open(err))
        if self._terminals and threading.current_thread() is threading.main_thread():
            self._resized = signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        return self

    @property
    def ends(self) -> tuple[int, int]:
        """The descriptors for the command's standard output and standard error."""
        return self._ends[0], self._ends[1]

    def started(self) -> None:
        """Close this process's copies of the command's descriptors, so that the readers see the end of the output."""
        for fd in self._ends:
            os.close(fd)
        self._ends = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.started()
        for thread in self._threads:
            # With a timeout: a background process of the command may keep its output open forever.
            thread.join(_REST_S)
        if self._resized is not None:
            signal.signal(signal.SIGWINCH, self._resized)  # type: ignore[arg-type]
        os.close(self._log)

    def _open(self, shown: int) -> int:
        if os.isatty(shown):
            ours, theirs = os.openpty()
            tty.setraw(theirs)  # the real terminal does the line processing
            self._terminals.append((ours, shown))
            self._resize()
        else:
            ours, theirs = os.pipe()
        thread = threading.Thread(target=self._copy, args=(ours, shown), name="tunefleet-tee", daemon=True)
        thread.start()
        self._threads.append(thread)
        return theirs

    def _copy(self, source: int, shown: int) -> None:
        silent = False
        while True:
            try:
                data = os.read(source, _CHUNK_BYTES)
            except OSError:
                data = b""  # EIO is the end of a pseudo-terminal
            if not data:
                os.close(source)
                return
            # A full disk must not stop the command, whose output is in the terminal anyway. The lock keeps the other
            # stream from writing during a cut.
            with contextlib.suppress(OSError), self._cutting:
                os.write(self._log, data)
                job_log.shorten(self._path, job_log.LIMIT_BYTES)
            if not silent:
                silent = not _write_all(shown, data)

    def _resize(self) -> None:
        for ours, shown in self._terminals:
            try:
                size = fcntl.ioctl(shown, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
                fcntl.ioctl(ours, termios.TIOCSWINSZ, size)
            except OSError:
                continue  # closed meanwhile


def _write_all(fd: int, data: bytes) -> bool:
    """Write all data; False once the reader is gone."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return False
    return True
