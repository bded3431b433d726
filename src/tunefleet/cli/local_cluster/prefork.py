"""Imports a program once, and forks it on request.

    python -m tunefleet.cli.local_cluster.prefork EVENTS PROGRAM …

`tunefleet up` starts its server this way where the system supports it (`fork_process.SUPPORTED`). Imports are most of a
server's start time: after a crash it serves again in a fraction of a second, and imported modules share memory.

Each fork and each exit is reported as one JSON object per line on the descriptor EVENTS. A line on standard input
requests the next fork; the end of standard input ends this process, and its fork then ends as on SIGTERM.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import sys
import threading
from types import ModuleType

from tunefleet.cli.local_cluster.child import watch

# Descriptor of standard input: requests for forks.
_REQUESTS = 0


def main() -> None:
    """Import the program, then fork it on each request."""
    events, name, *arguments = sys.argv[1:]
    # As in `tunefleet.api.__main__`: garbage collection among modules takes a third of their import time.
    gc.disable()
    program = importlib.import_module(name)
    # Keep the shared pages shared: a collection in a fork would write to the headers of all objects.
    gc.freeze()
    parent = os.getpid()
    while True:
        pid = os.fork()
        if pid == 0:
            # The pid from before the fork: after the parent's death getppid() would return the new parent.
            threading.Thread(target=watch, args=(parent,), name="parent-watch", daemon=True).start()
            _run(program, name, arguments, int(events))
        _send_event(int(events), pid=pid)
        code = _wait(pid)
        if code is None:
            return
        _send_event(int(events), ended=code)
        if not os.read(_REQUESTS, 64):
            return


def _run(program: ModuleType, name: str, arguments: list[str], events: int) -> None:
    os.close(events)
    # The requests on standard input are for the fork server only.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _REQUESTS)
    os.close(nothing)
    sys.argv = [name, *arguments]
    sys.exit(program.main())


def _send_event(events: int, **fields: int) -> None:
    os.write(events, json.dumps(fields).encode() + b"\n")


def _wait(pid: int) -> int | None:
    """Wait for a fork's end; returns its exit code as in `subprocess`, `None` if standard input ended first."""
    ended = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([ended, _REQUESTS], [], [])
    finally:
        os.close(ended)
    if ended not in ready:
        return None
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
