"""HTTP as uvicorn speaks it, but for the bodies of uploads, which it would hand to the app in thousands of pieces.

Each piece wakes the app and goes through all of its layers, which for a large file costs more than its bytes. Here the
app gets a megabyte at a time, or what there is at the end; and of a connection that breaks also what had arrived.

Who sends half a body and no more, or asks for a file and does not read it, would hold memory, an open file and the
right to write an upload for as long as it likes: a connection on which nothing moves is ended.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tunefleet.http_heads import BoundedHeads

_HANDED_OVER_BYTES: Final = 1 << 20
_WAITING_BYTES: Final = 2 << 20
"""With so much that waits for the app no more is read from the network."""
_STILL_S: Final = 120.0
"""A connection ends if no byte of what is awaited comes, or of what is to be read goes, for so long."""


class Protocol(BoundedHeads):
    """One connection."""

    _stuck: asyncio.TimerHandle | None = None

    def on_headers_complete(self) -> None:
        """Let the app receive the body that follows in large pieces."""
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            # uvicorn makes it, and leaves no choice of its class.
            self.cycle.__class__ = _Cycle

    def on_body(self, body: bytes) -> None:
        """Let a piece of a body wait for the app."""
        if (self.parser.should_upgrade() and self._should_upgrade()) or self.cycle.response_complete:
            return
        cast("_Cycle", self.cycle).add(body)

    def pause_writing(self) -> None:
        """Note that the other side reads no faster than this sends; end it if it reads nothing."""
        super().pause_writing()
        self._look_again(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Go on sending."""
        self._look_no_more()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the connection."""
        self._look_no_more()
        super().connection_lost(exc)

    def _look_again(self, left: int) -> None:
        self._stuck = self.loop.call_later(_STILL_S, self._end_if_stuck, left)

    def _look_no_more(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _end_if_stuck(self, had: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < had:
            self._look_again(left)
        else:
            self.transport.abort()


class _Cycle(RequestResponseCycle):
    """One request, whose body waits here, and its answer."""

    _pieces: list[bytes] | None = None
    _size = 0
    _arrived = 0
    _silent: asyncio.TimerHandle | None = None

    def add(self, piece: bytes) -> None:
        """Let a piece of the body wait."""
        if self._pieces is None:
            self._pieces = []
        self._pieces.append(piece)
        self._size += len(piece)
        self._arrived += len(piece)
        if self._size >= _WAITING_BYTES:
            self.flow.pause_reading()
        if self._size >= _HANDED_OVER_BYTES:
            self.message_event.set()

    async def receive(self) -> ASGIReceiveEvent:
        """Return what has arrived, once that is enough, or the end; that a connection broke comes after it."""
        self._listen()
        try:
            message = await super().receive()
        finally:
            if self._silent is not None:
                self._silent.cancel()
        if not self._pieces or self.response_complete:
            return message
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._size = None, 0
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def _listen(self) -> None:
        """End the connection if nothing of the body comes; once it is whole, the other side has nothing to say."""
        if self.more_body:
            self._silent = asyncio.get_running_loop().call_later(_STILL_S, self._end_if_silent, self._arrived)

    def _end_if_silent(self, had: int) -> None:
        if self._arrived > had:
            self._listen()
        elif self.more_body:
            self.transport.close()
