"""The line on which a job is talked with: a socket of its own, to which the worker brings turns; a JSON object a line.

{"op": "hello"}            → {"models": […]}
{"op": "turn", "request"}  → a `ChatPiece` a line; the last one has `finish` or `error`
{"op": "end"}              → {}
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tunefleet.runtime.warm.client import socket_folder
from tunefleet.runtime.warm.engine_registry import peer_uid


def address(folder: Path) -> Path:
    """Return where a job listens: job folders may lie too deep for the name of a socket."""
    return socket_folder() / f"chat-{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]}.sock"


class Call:
    """One question to a job, and what it answers.

    Raises:
        OSError: If it does not listen, or another user does.
    """

    def __init__(self, folder: Path, question: dict[str, Any]) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connection.connect(str(address(folder)))
            if peer_uid(self._connection) != os.geteuid():
                raise PermissionError("Somebody else listens there.")
            self._connection.sendall(json.dumps(question).encode() + b"\n")
        except OSError:
            self._connection.close()
            raise

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the answers until the job has no more, or is gone."""
        with self._connection.makefile("rb") as answers:
            for line in answers:
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def close(self) -> None:
        """Hang up; the job ends an answer that it is giving."""
        try:
            # A thread may be reading: closing alone would not wake it.
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            self._connection.close()
