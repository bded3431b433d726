"""Keeps the fork servers of a run from one fleet to the next: each imports the training libraries, which takes long."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tunefleet.runtime.warm.client import socket_folder
from tunefleet.trainer_control import process_identity

MOST = 3
"""So many are kept at most: one holds half a gigabyte, and nearly all fleets share one."""
PATIENCE_S = 10.0
LOOK_S = 0.2

_kept: dict[Path, int] = {}


@contextlib.contextmanager
def while_it_runs() -> Iterator[None]:
    """Keep what is started meanwhile: a fleet that a test itself ends takes along what nobody else has asked for."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            keep()

    watcher = threading.Thread(target=watch, name="kept-warm", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def keep() -> None:
    """Be a user of the servers that listen now; they stay for as long as this process lives, or until `release`."""
    for path in sorted(socket_folder().glob("*.sock")):
        if path in _kept and process_identity.process_started_at(_kept[path]):
            continue
        if (path in _kept or len(_kept) < MOST) and (pid := _say(path, b"")):
            _kept[path] = pid


def release() -> None:
    """Need them no more: they end, unless somebody else needs them. Waits for that: they write their coverage then."""
    left = [_say(path, json.dumps({"leaves": True}).encode() + b"\n") for path in _kept]
    _kept.clear()
    deadline = time.monotonic() + PATIENCE_S
    while any(pid and process_identity.process_started_at(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.05)


def _say(path: Path, request: bytes) -> int | None:
    """Tell a server something; returns its pid, or null if there is none."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(5)
        connection.connect(str(path))
        connection.sendall(request)
        pid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid
    return None
