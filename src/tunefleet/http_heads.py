"""HTTP as uvicorn speaks it, with heads of requests that have an end.

uvicorn waits for the rest of a head as long as nobody hangs up, and keeps all of it: connections that send a line now
and then would take every descriptor of a server, and one that never ends its headers all of the memory, without a key.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Of the line and the headers of a request, until the last of them has come.
MAX_HEAD_BYTES: Final = 64 << 10
# A head is whole so long after its first byte; the first one after the connection.
_HEAD_S: Final = 30.0
# What arrived while the process did something else is read before it is too late.
_LAST_CALL_S: Final = 1.0
_TOO_LARGE: Final = b"The line and headers of a request have at most %d bytes." % MAX_HEAD_BYTES


class BoundedHeads(HttpToolsProtocol):
    """One connection, which ends where the head of a request is too long or takes too long."""

    _begun = True
    _in_body = False
    _size = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read on; count what belongs to a head that is not whole."""
        answered = self.timeout_keep_alive_task is not None
        leftover = answered and self._in_body
        # Of blank lines before a request the parser says nothing.
        self._begun = self._begun or (answered and not self._in_body)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._begun:
            self._size += len(data)
        if self._size > MAX_HEAD_BYTES:
            self._refuse()
        elif (self._begun or leftover) and self._deadline is None:
            # What is left of a body that was answered early has as much time: the timer that kept the line is off.
            self._wait()

    def on_message_begin(self) -> None:
        """Note that a head has begun."""
        super().on_message_begin()
        self._begun = True

    def on_headers_complete(self) -> None:
        """Note that a head is whole."""
        self._begun, self._in_body, self._size = False, True, 0
        self._wait_no_more()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the body has come, if there is one."""
        self._in_body = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the connection."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(_HEAD_S, self._last_call)

    def _last_call(self) -> None:
        self._deadline = self.loop.call_later(_LAST_CALL_S, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self) -> None:
        head = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        self.transport.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(_TOO_LARGE), _TOO_LARGE))
        self.transport.close()
