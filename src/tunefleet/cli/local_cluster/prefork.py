"""Imports a program once, and forks it each time it is asked to.

    python -m tunefleet.cli.local_cluster.prefork EVENTS PROGRAM …

`tunefleet up` runs its server so where the system can (`forked.POSSIBLE`). Imports are nearly all of a server's start:
one that was killed serves again in a fraction of a second, and what both processes have imported is in memory once.

Each fork and each end is told, one JSON object a line, on the descriptor EVENTS. On the standard input a line asks for
the next fork, and its end ends this process; what it has forked notices that, and ends as after SIGTERM.
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

# The standard input.
_ASKED = 0


def main() -> None:
    """Import the program, then fork it again and again."""
    events, name, *arguments = sys.argv[1:]
    # As in `tunefleet.api.__main__`: the look for garbage among modules takes a third of their import.
    gc.disable()
    program = importlib.import_module(name)
    # What all of them share is not written to by their looks for garbage.
    gc.freeze()
    me = os.getpid()
    while True:
        pid = os.fork()
        if pid == 0:
            # Its parent is known from before: whom it would ask for may be gone already.
            threading.Thread(target=watch, args=(me,), name="parent-watch", daemon=True).start()
            _run(program, name, arguments, int(events))
        _tell(int(events), pid=pid)
        code = _outlive(pid)
        if code is None:
            return
        _tell(int(events), ended=code)
        if not os.read(_ASKED, 64):
            return


def _run(program: ModuleType, name: str, arguments: list[str], events: int) -> None:
    os.close(events)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _ASKED)
    os.close(nothing)
    sys.argv = [name, *arguments]
    sys.exit(program.main())


def _tell(events: int, **what: int) -> None:
    os.write(events, json.dumps(what).encode() + b"\n")


def _outlive(pid: int) -> int | None:
    """Wait for a fork's end; returns its status as `subprocess` has it, null if whoever asks for them is gone."""
    ended = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([ended, _ASKED], [], [])
    finally:
        os.close(ended)
    if ended not in ready:
        return None
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
