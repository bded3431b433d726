"""The chat channel of a job: a Unix socket to which the worker relays turns; one JSON object per line.

{"op": "hello"}            → {"models": […]}
{"op": "turn", "request"}  → one `ChatPiece` per line; the last one has `finish` or `error`
{"op": "end"}              → {}
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tunefleet.runtime.warm.client import socket_folder
from tunefleet.runtime.warm.engine_registry import peer_uid

END_FILE: Final = "end"
"""File in the folder of a job with an HTTP server; the job completes when it exists."""


def address(folder: Path) -> Path:
    """Return the socket of a job."""
    return _socket(folder, "chat")


def http_socket(folder: Path) -> Path:
    """Return the socket of a job's HTTP server."""
    return _socket(folder, "http")


def _socket(folder: Path, purpose: str) -> Path:
    # Not in the job folder: the path of a Unix socket is limited to about 100 bytes.
    return socket_folder() / f"{purpose}-{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]}.sock"


class Call:
    """One request to a job, and its responses.

    Raises:
        OSError: If the job does not listen, or the listener belongs to another user.
    """

    def __init__(self, folder: Path, question: dict[str, Any]) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connection.connect(str(address(folder)))
            if peer_uid(self._connection) != os.geteuid():
                raise PermissionError("The socket belongs to another user.")
            self._connection.sendall(json.dumps(question).encode() + b"\n")
        except OSError:
            self._connection.close()
            raise

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the responses until the job has no more, or is gone."""
        with self._connection.makefile("rb") as answers:
            for line in answers:
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def close(self) -> None:
        """Close the connection; the job stops the answer in progress."""
        try:
            # A thread may be reading: close alone would not wake it.
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            self._connection.close()
