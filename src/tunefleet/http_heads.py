"""uvicorn's HTTP protocol with limits on the size and duration of request headers.

uvicorn waits for the rest of the headers without a time limit and buffers all of them: slow connections (slowloris)
could use up all file descriptors, and endless headers all of the memory, without authentication.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Limit for the request line and headers.
MAX_HEAD_BYTES: Final = 64 << 10
# Seconds from the first byte (for the first request: from the connection) within which the headers must be complete.
_HEAD_S: Final = 30.0
# Extra time, so that data which arrived while the event loop was busy is read before the connection is closed.
_EXTRA_TIME_S: Final = 1.0
_TOO_LARGE: Final = b"The request line and headers exceed %d bytes." % MAX_HEAD_BYTES


class BoundedHeads(HttpToolsProtocol):
    """A connection that is closed if the headers of a request are too long or take too long."""

    _in_head = True
    _in_body = False
    _size = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Process data; count the bytes of incomplete headers."""
        answered = self.timeout_keep_alive_task is not None
        has_leftover = answered and self._in_body
        # The parser does not report blank lines before a request, so they are counted from here.
        self._in_head = self._in_head or (answered and not self._in_body)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._size += len(data)
        if self._size > MAX_HEAD_BYTES:
            self._refuse()
        elif (self._in_head or has_leftover) and self._deadline is None:
            # The rest of a body that was answered early has the same time limit, since the keep-alive timer is off.
            self._start_timer()

    def on_message_begin(self) -> None:
        """Mark the start of the headers."""
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Mark the end of the headers."""
        self._in_head, self._in_body, self._size = False, True, 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Mark the end of the body, if there is one."""
        self._in_body = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._deadline = self.loop.call_later(_HEAD_S, self._grant_extra_time)

    def _grant_extra_time(self) -> None:
        self._deadline = self.loop.call_later(_EXTRA_TIME_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self) -> None:
        head = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        self.transport.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(_TOO_LARGE), _TOO_LARGE))
        self.transport.close()
