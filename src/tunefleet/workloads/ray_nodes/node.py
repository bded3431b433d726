"""The actor in a bundle: it holds the CPUs and GPUs, and runs the command."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

_GUARD: Final = "tunefleet.workloads.ray_nodes.guard"
_NOT_HANDED_ON: Final = frozenset({"RAY_AUTH_TOKEN"})
"""Ray's token gives access to the cluster and is not passed to the command."""


class Node:
    """The Ray actor, with two threads: one waits for the command, the other can stop it."""

    def __init__(self, number: int, grace_s: float) -> None:
        self._number = number
        self._grace_s = grace_s
        self._line, self._theirs = socket.socketpair()

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
        """Run a command; return its exit code, and the error if it did not start.

        The environment is an argument because Ray's head stores, possibly on disk, an actor's constructor arguments.
        """
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON}
        given = {**kept, **environment, "TUNEFLEET_NODE": str(self._number)}
        arguments = [sys.executable, "-m", _GUARD, str(self._grace_s), *command]
        with self._theirs:
            subprocess.run(arguments, stdin=self._theirs.fileno(), env=given, check=True)
        with self._line.makefile("rb") as answers:
            line = answers.readline()
        if not line:
            return 1, "its parent process was killed"
        outcome = json.loads(line)
        return int(outcome.get("code", 1)), str(outcome.get("fault", ""))

    def stop(self) -> None:
        """Stop the command: SIGTERM, and SIGKILL after the grace period."""
        # It may have ended already.
        with contextlib.suppress(OSError):
            self._line.sendall(b"stop\n")
