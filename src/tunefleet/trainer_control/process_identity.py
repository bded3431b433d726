"""Identity of a process, beyond its pid, which is reused.

A pid with its start time and the machine's boot id identifies one process for ever. On a system without `/proc` the
start time is unknown, and the pid alone must not be trusted.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def process_started_at(pid: int) -> float | None:
    """Return when a process started, in seconds since boot, or None if that is unknown or the process is gone.

    Seconds since boot and not since the epoch: the wall clock may be set while the process lives.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold spaces; the 20th field after it is the start time in clock ticks.
    fields = stat[stat.rindex(b")") + 2 :].split()
    # A zombie or dead process still has an entry, but does nothing any more.
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def boot_id() -> str | None:
    """Return the id of this boot of the machine, or None where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def hostname() -> str:
    """Return this machine's name."""
    return socket.gethostname()


def resident_bytes() -> int | None:
    """Return the resident memory of this process, or None where that is unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def machine() -> str:
    """Return a name that only processes share which see each other's pids: containers may have equal host names."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""
    return f"{hostname()} {boot_id() or ''} {space}"


def variable(name: str) -> str | None:
    """Return an environment variable; None if it is unset or empty."""
    return os.environ.get(name) or None
