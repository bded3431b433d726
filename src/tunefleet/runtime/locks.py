"""File locks that the processes of a job inherit: the lock is held while any of them is running."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path


def take(path: Path, *, patience_s: float = 0.0) -> int | None:
    """Lock a file and return the descriptor, which children inherit; None if another process holds the lock.

    Args:
        patience_s: How long to try. `is_held` holds the lock for microseconds, so that a single try may fail.
    """
    # `flock` and not `filelock`: the lock belongs to the open file, so that a child that inherits the descriptor holds
    # it too, and the kernel releases it when the last process is gone, however it ended.
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(0.01)
        else:
            if not _is_still(path, fd):
                # Its last holder has removed the file: a new one has to be locked instead.
                os.close(fd)
                fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                continue
            os.set_inheritable(fd, True)
            return fd


def _is_still(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False


def is_held(path: Path) -> bool:
    """Return whether any process holds the lock of a file."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two concurrent checks do not take each other for the holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holders(path: Path) -> list[int]:
    """Return the other processes that hold the lock of a file, as far as this user may see them.

    Linux only; empty on other systems.
    """
    try:
        wanted = path.stat()
    except FileNotFoundError:
        return []
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return [pid for pid in pids if pid != os.getpid() and _holds(pid, wanted)]


def holds(pid: int, path: Path) -> bool:
    """Return whether a process holds the lock of a file, as far as this user may see that. Linux only."""
    try:
        return _holds(pid, path.stat())
    except FileNotFoundError:
        return False


def _holds(pid: int, wanted: os.stat_result) -> bool:
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False  # gone, or of another user
    return any(_is_lock(pid, link, wanted) for link in links)


def _is_lock(pid: int, link: Path, wanted: os.stat_result) -> bool:
    try:
        if not os.path.samestat(link.stat(), wanted):
            return False
        facts = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text(encoding="ascii")
    except OSError:
        return False
    # `is_held` has the file open too, but never with an exclusive lock.
    return any(line.startswith("lock:") and "FLOCK" in line and "WRITE" in line for line in facts.splitlines())
