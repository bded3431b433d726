"""Cancels blocking work in other threads: pauses end immediately, socket waits by shutting the socket down."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

__all__ = ["CancelToken", "CancelledByToken", "Trace", "interruptibly"]

T = TypeVar("T")

# The signature of httpx's `trace` extension.
Trace = Callable[[str, Any], None]


class CancelledByToken(Exception):
    """The operation was cancelled."""


class CancelToken:
    """Cancellation token shared by several threads; set once, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._sockets: set[socket.socket] = set()

    def set(self) -> None:
        """Cancel, and shut the watched connections down."""
        with self._lock:
            self._event.set()
            for each in self._sockets:
                _shut(each)

    def is_set(self) -> bool:
        """Return whether it is cancelled."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise if it is cancelled.

        Raises:
            Stopped: If it is.
        """
        if self._event.is_set():
            raise CancelledByToken

    def pause(self, seconds: float) -> None:
        """Sleep.

        Args:
            seconds: How long.

        Raises:
            Stopped: As soon as it is cancelled.
        """
        if self._event.wait(seconds):
            raise CancelledByToken

    @contextmanager
    def watched(self) -> Iterator[Trace]:
        """Watch the connections of one request; yields the `trace` callback for httpx."""
        mine: set[socket.socket] = set()

        def trace(event: str, info: Any) -> None:
            if event != "connection.connect_tcp.complete":
                return
            # A duplicate descriptor: when TLS begins, the connection's own moves to another object before the
            # handshake is complete.
            opened = info["return_value"].get_extra_info("socket").dup()
            with self._lock:
                mine.add(opened)
                self._sockets.add(opened)
                if self._event.is_set():
                    _shut(opened)

        try:
            yield trace
        finally:
            with self._lock:
                self._sockets -= mine
                for each in mine:
                    each.close()


def _shut(opened: socket.socket) -> None:
    # Below TLS, without its closing handshake: a thread that waits for a byte wakes up.
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def interruptibly(
    act: Callable[[CancelToken], T], look: Callable[[], None], wake: Callable[[], None] | None = None
) -> T:
    """Run a function that may block in a socket or a lock for minutes, and return as soon as it is cancelled.

    Args:
        act: The function, run in a thread of its own; an abandoned thread is cancelled.
        look: Called repeatedly until it is done; waits briefly, and may raise.
        wake: Called in that thread when it is done.

    Raises:
        Exception: Errors of `act` or `look`.
    """
    future: Future[T] = Future()
    stop = CancelToken()

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
