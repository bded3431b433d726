"""The actor in a bundle: it has the CPUs and GPUs, and runs the command there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

_GUARD: Final = "tunefleet.programs.ray_nodes.guard"
_NOT_HANDED_ON: Final = frozenset({"RAY_AUTH_TOKEN"})
"""What opens the cluster is not for what runs on it."""


class Node:
    """What Ray makes an actor of, with two threads: one waits for the command, the other can end it.

    Args:
        number: Of the node, from 0.
        command: What is run.
        environment: Variables for it.
        grace_s: How long it may take to end.
    """

    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str], grace_s: float) -> None:
        self._arguments = [sys.executable, "-m", _GUARD, str(grace_s), *command]
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON}
        self._environment = {**kept, **environment, "TUNEFLEET_NODE": str(number)}
        self._line, self._theirs = socket.socketpair()

    def run(self) -> tuple[int, str]:
        """Run the command; returns its exit code, and a fault of the start in words."""
        with self._theirs:
            subprocess.run(self._arguments, stdin=self._theirs.fileno(), env=self._environment, check=True)
        with self._line.makefile("rb") as answers:
            said = answers.readline()
        if not said:
            return 1, "its guard was killed"
        told = json.loads(said)
        return int(told.get("code", 1)), str(told.get("fault", ""))

    def stop(self) -> None:
        """Have the command end: SIGTERM, and SIGKILL after the grace."""
        # It may have ended by now.
        with contextlib.suppress(OSError):
            self._line.sendall(b"stop\n")
