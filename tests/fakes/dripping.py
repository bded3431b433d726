"""A host that never ends what it begins to say: a byte now and then, in whatever part of an answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

HEAD: Final = b"HTTP/1.1 200 OK\r\n"
DRIPS: Final[dict[str, tuple[bytes, bytes]]] = {
    "nothing": (b"", b""),
    "a header": (HEAD + b"X-A: ", b"a"),
    "endless hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
    "a body": (HEAD + b"Content-Length: 100000000\r\n\r\n", b"{}\n"),
    "the frame of a body": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "a body without an end": (HEAD + b"\r\n", b"{}\n"),
    "a handshake": (b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xf0", b"\0"),
}
"""What drips → what comes at once, and what again and again."""


@dataclass
class Dripping:
    """Where it is, and whom it serves."""

    port: int = 0
    begun: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    """Somebody's connection has ended from the other side."""
    asked: int = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/rows.jsonl"


@contextmanager
def dripping(what: str, pause_s: float = 0.02) -> Iterator[Dripping]:
    """Drip while the body runs.

    Args:
        what: One of `DRIPS`.
        pause_s: Between two drops.
    """
    first, again = DRIPS[what]
    over, host = threading.Event(), Dripping()
    listener = socket.create_server(("127.0.0.1", 0))
    host.port = listener.getsockname()[1]

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            try:
                connection.recv(65536)
                connection.sendall(first)
                host.begun.set()
                connection.settimeout(pause_s)
                while not over.is_set():
                    try:
                        if not connection.recv(65536):
                            return
                    except TimeoutError:
                        connection.sendall(again)
            finally:
                host.left.set()

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                host.asked += 1
                threading.Thread(target=serve, args=(connection,), name="drip", daemon=True).start()

    threading.Thread(target=accept, name="drips", daemon=True).start()
    try:
        yield host
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
