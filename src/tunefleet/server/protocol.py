"""HTTP as uvicorn speaks it, but for the bodies of uploads, which it would copy twice more than need be.

Knows one field of uvicorn's own, the body that waits for the app; where that is gone, nothing but the saving is.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Protocol(HttpToolsProtocol):
    """One connection."""

    def on_body(self, body: bytes) -> None:
        """Let a piece of a body wait for the app: a single one as it is, and only several together in a buffer."""
        waiting: bytes | bytearray = self.cycle.body
        if not waiting:
            self.cycle.body = b""  # type: ignore[assignment]  # uvicorn only adds to it, and reads it
        elif isinstance(waiting, bytes):
            self.cycle.body = bytearray(waiting)
        super().on_body(body)
