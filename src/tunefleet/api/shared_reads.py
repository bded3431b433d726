"""Files that never change, read in pieces which all who send the same one at the same time share.

A federation's new version goes to all of its workers at once: it is read once, not once for each of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

# Of a file; who sends it has two of them in memory.
PIECE_BYTES: Final = 2 << 20


class Opened:
    """A file that stays open as long as somebody has this, and is closed with the last one: who gives up need not wait.

    Raises:
        OSError: If it cannot be opened.
    """

    descriptor: int | None = None

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def status(self) -> os.stat_result:
        """Return what is known of the file."""
        assert self.descriptor is not None, "it is closed by nobody"
        return os.fstat(self.descriptor)

    def piece(self, start: int) -> bytes:
        """Return the piece that begins there; it blocks."""
        assert self.descriptor is not None, "it is closed by nobody"
        return os.pread(self.descriptor, PIECE_BYTES, start)


class _Piece:
    """A piece that is here or on its way; it is forgotten with the last one who wants it."""

    def __init__(self, coming: asyncio.Future[bytes]) -> None:
        self.coming = coming


_pieces: Final[WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Path, int], _Piece]] = WeakValueDictionary()


async def read(path: Path, opened: Opened, size_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield a file; the next piece is read while one is on its way.

    Raises:
        OSError: If it cannot be read.
    """
    for start in range(0, size_bytes, PIECE_BYTES):
        ahead = range(start, min(start + 2 * PIECE_BYTES, size_bytes), PIECE_BYTES)
        wanted = [_piece(path, opened, each) for each in ahead]
        # Whoever gives up does so for himself alone.
        yield await asyncio.shield(wanted[0].coming)


def _piece(path: Path, opened: Opened, start: int) -> _Piece:
    key = asyncio.get_running_loop(), path, start
    piece = _pieces.get(key)
    if piece is None:
        coming = asyncio.ensure_future(asyncio.to_thread(opened.piece, start))
        piece = _pieces[key] = _Piece(coming)
    return piece
