"""Ends what waits in another thread: a pause at once, and what waits for a socket by shutting that down."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["Stop", "Stopped"]


class Stopped(Exception):
    """Nobody wants the answer any more."""


class Stop:
    """Says that what several threads do is not wanted any more; set once, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said = threading.Event()
        self._sockets: set[socket.socket] = set()

    def set(self) -> None:
        """Say it, and end the connections that are watched."""
        with self._lock:
            self._said.set()
            for each in self._sockets:
                _shut(each)

    def is_set(self) -> bool:
        """Whether it was said."""
        return self._said.is_set()

    def check(self) -> None:
        """Do nothing as long as it was not said.

        Raises:
            Stopped: If it was.
        """
        if self._said.is_set():
            raise Stopped

    def pause(self, seconds: float) -> None:
        """Wait.

        Args:
            seconds: How long.

        Raises:
            Stopped: As soon as it is said.
        """
        if self._said.wait(seconds):
            raise Stopped

    @contextmanager
    def watched(self) -> Iterator[Callable[[str, Any], None]]:
        """Watch the connections of one request; gives what httpx is to call as its `trace`."""
        mine: set[socket.socket] = set()

        def trace(event: str, info: Any) -> None:
            # With TLS there are two: the first one's descriptor has gone to the second.
            if event not in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
                return
            opened = info["return_value"].get_extra_info("socket")
            with self._lock:
                mine.add(opened)
                self._sockets.add(opened)
                if self._said.is_set():
                    _shut(opened)

        try:
            yield trace
        finally:
            with self._lock:
                self._sockets -= mine


def _shut(opened: socket.socket) -> None:
    # The plain one, also of TLS: no farewell is awaited. Who waits for a byte there wakes up.
    with suppress(OSError):
        socket.socket.shutdown(opened, socket.SHUT_RDWR)
