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

PIECE_BYTES: Final = 2 << 20
"""Of a file; who sends it has two of them in memory."""


class _Piece:
    """A piece that is here or on its way; it is forgotten with the last one who wants it."""

    def __init__(self, coming: asyncio.Future[bytes]) -> None:
        self.coming = coming


_pieces: Final[WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Path, int], _Piece]] = WeakValueDictionary()


async def read(path: Path, size_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield a file; the next piece is read while one is on its way.

    Args:
        path: The file, which nobody changes. It may be deleted meanwhile.
        size_bytes: Its length.

    Raises:
        OSError: If it cannot be read.
    """
    opening = asyncio.ensure_future(asyncio.to_thread(open, path, "rb", buffering=0))
    wanted: list[_Piece] = []
    try:
        # Whoever gives up does so for himself alone.
        file = await asyncio.shield(opening)
        for start in range(0, size_bytes, PIECE_BYTES):
            ahead = range(start, min(start + 2 * PIECE_BYTES, size_bytes), PIECE_BYTES)
            wanted = [_piece(path, file.fileno(), each) for each in ahead]
            yield await asyncio.shield(wanted[0].coming)
    finally:
        if wanted:
            await asyncio.wait([each.coming for each in wanted])
        await asyncio.to_thread((await opening).close)


def _piece(path: Path, descriptor: int, start: int) -> _Piece:
    key = asyncio.get_running_loop(), path, start
    piece = _pieces.get(key)
    if piece is None:
        coming = asyncio.ensure_future(asyncio.to_thread(os.pread, descriptor, PIECE_BYTES, start))
        piece = _pieces[key] = _Piece(coming)
    return piece
