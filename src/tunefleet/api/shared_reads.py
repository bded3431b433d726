"""Reads of immutable files, shared by all responses that send the same file at the same time.

A federation's new version goes to all of its workers at the same moment: it is read once, not once per worker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

# Read-ahead keeps two of these in memory per file.
PIECE_BYTES: Final = 2 << 20


class SharedFile:
    """A file that is closed when the last reference to it is gone.

    Raises:
        OSError: If it cannot be opened.
    """

    descriptor: int | None = None

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    # Not a context manager: a cancelled response leaves its read running in a thread, which still needs the descriptor.
    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def status(self) -> os.stat_result:
        """Return the file's status."""
        assert self.descriptor is not None, "only the destructor closes it"
        return os.fstat(self.descriptor)

    def piece(self, start: int) -> bytes:
        """Read the piece that begins at an offset; blocks."""
        assert self.descriptor is not None, "only the destructor closes it"
        return os.pread(self.descriptor, PIECE_BYTES, start)


class _Piece:
    """A piece that is read or being read; dropped with its last user."""

    def __init__(self, coming: asyncio.Future[bytes]) -> None:
        self.coming = coming


_pieces: Final[WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Path, int], _Piece]] = WeakValueDictionary()


async def read(path: Path, opened: SharedFile, size_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield a file; the next piece is read while one is sent.

    Raises:
        OSError: If it cannot be read.
    """
    for start in range(0, size_bytes, PIECE_BYTES):
        ahead = range(start, min(start + 2 * PIECE_BYTES, size_bytes), PIECE_BYTES)
        wanted = [_piece(path, opened, each) for each in ahead]
        # Shielded: a cancelled response must not cancel the read for the others.
        yield await asyncio.shield(wanted[0].coming)


def _piece(path: Path, opened: SharedFile, start: int) -> _Piece:
    key = asyncio.get_running_loop(), path, start
    piece = _pieces.get(key)
    if piece is None:
        coming = asyncio.ensure_future(asyncio.to_thread(opened.piece, start))
        piece = _pieces[key] = _Piece(coming)
    return piece
