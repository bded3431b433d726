"""Runs a node's command, and ends it on request, or when the actor that could request it is dead.

Ray kills an actor, or the raylet dies, without notifying the actor's subprocesses; and it kills the children of a
process that ends. So the command has a parent that is not a child of the actor. Both share a socket, and its end is a
stop request as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from types import FrameType
from typing import Final

_LOOK_S: Final = 0.1
_SIGNALLED: Final = 128


class CommandParent:
    """One command."""

    def __init__(self, line: socket.socket, grace_s: float) -> None:
        self._line = line
        self._grace_s = grace_s
        self._stop_requested = False

    def run(self, command: list[str]) -> None:
        """Start the command, and return when no process of it is left."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._request_stop)
        # Ray's processes block some signals, and the mask is inherited.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            self._answer({"fault": f"{command[0]}: {error.strerror or error}"})
            return
        try:
            code = self._wait(child)
        finally:
            _signal(child.pid, signal.SIGKILL)
        self._answer({"code": code if code >= 0 else _SIGNALLED - code})

    def _request_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_requested = True

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        deadline = None
        while (code := child.poll()) is None:
            if deadline is None:
                readable, _, _ = select.select([self._line], [], [], _LOOK_S)
                if readable or self._stop_requested:
                    deadline = time.monotonic() + self._grace_s
                    _signal(child.pid, signal.SIGTERM)
            elif time.monotonic() > deadline:
                _signal(child.pid, signal.SIGKILL)
                return child.wait()
            else:
                time.sleep(_LOOK_S)
        return code

    def _answer(self, message: dict[str, object]) -> None:
        # The actor may be dead.
        with contextlib.suppress(OSError):
            self._line.sendall(json.dumps(message).encode() + b"\n")


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def main() -> int:
    """Detach from the actor's process group immediately; its socket is standard input."""
    if os.fork():
        return 0
    os.setsid()
    with socket.socket(fileno=os.dup(0)) as line:
        CommandParent(line, float(sys.argv[1])).run(sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
