"""Ends what waits in another thread: a pause at once, and what waits for a socket by shutting that down."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

__all__ = ["Stop", "Stopped", "Trace", "interruptibly"]

T = TypeVar("T")

# What httpx tells of the steps of a request.
Trace = Callable[[str, Any], None]


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
    def watched(self) -> Iterator[Trace]:
        """Watch the connections of one request; gives what httpx is to call as its `trace`."""
        mine: set[socket.socket] = set()

        def trace(event: str, info: Any) -> None:
            if event != "connection.connect_tcp.complete":
                return
            # A descriptor of our own: that of the connection goes to another object when TLS begins, before its
            # handshake is done.
            opened = info["return_value"].get_extra_info("socket").dup()
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
                for each in mine:
                    each.close()


def _shut(opened: socket.socket) -> None:
    # Below TLS: no farewell is awaited. Who waits for a byte there wakes up.
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def interruptibly(act: Callable[[Stop], T], look: Callable[[], None], wake: Callable[[], None] | None = None) -> T:
    """Do something that may sit in a socket or a lock for minutes, and leave it once it is not wanted.

    Args:
        act: What is to be done, in a thread of its own: one that is left is told to end.
        look: Called again and again until it is done; waits a moment, and may raise.
        wake: Called in that thread when it is done.

    Raises:
        Exception: What `act` or `look` raises.
    """
    future: Future[T] = Future()
    stop = Stop()

    def run() -> None:
        try:
            future.set_result(act(stop))
        except BaseException as error:  # noqa: BLE001 -- raised where it is waited for
            future.set_exception(error)
        if wake is not None:
            wake()

    threading.Thread(target=copy_context().run, args=(run,), name="fetch", daemon=True).start()
    try:
        while not future.done():
            look()
    except BaseException:
        stop.set()
        raise
    return future.result()
