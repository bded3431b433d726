"""One connection to an engine, from the side that asks."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any, Self

from tunefleet.workloads.engine import messages as wire


class BrokenLineError(Exception):
    """The engine has closed the connection, most likely by dying."""


class Line:
    """A connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def send(self, *messages: dict[str, Any]) -> None:
        """Send messages.

        Raises:
            BrokenLineError: If nobody is there.
        """
        try:
            for message in messages:
                self._connection.sendall(wire.line(message))
        except OSError as error:
            raise BrokenLineError from error

    def read(self) -> dict[str, Any]:
        """Return the next message; waits for it.

        Raises:
            BrokenLineError: If nobody is there any more.
            Exception: What the engine has raised.
        """
        try:
            text = self._lines.readline()
        except OSError as error:
            raise BrokenLineError from error
        if not text.endswith(b"\n"):
            raise BrokenLineError
        message: dict[str, Any] = json.loads(text)
        if "error" in message:
            raise wire.raised(message["error"])
        return message

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
