"""Move one file between a worker and its federation: resumable, every digest checked.

The federation's blob routes are those of artifacts (`transfer`) under an address that the federation's token reaches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tunefleet.artifacts import LocalFile, hash_file, replace_file
from tunefleet.client.call import Call, Flow, Pause, Sink, ask, nothing, path
from tunefleet.errors import ArtifactError, ConflictError, GoneError, OffsetConflict, UnreachableError
from tunefleet.wire.api import FileEntry

_PIECE_BYTES: Final = 1 << 20
_FRUITLESS_TRIES: Final = 8
"""So often a transfer may break in a row without a byte getting through."""
_LONGEST_PAUSE_S: Final = 5.0
_ANSWER_S: Final = 60.0
_KEPT_BYTES_PER_S: Final = 20e6
"""So slow, at worst, a server checks and keeps a file before it answers."""


def send(federation: str, file: LocalFile, patience_s: float) -> Flow[None]:
    """Send a file, from the byte on that earlier calls came to; one that is there is not sent again.

    Args:
        federation: Whose.
        file: What.
        patience_s: How long it may get nowhere.

    Raises:
        GoneError: If the federation has ended.
        UnreachableError: If it gets nowhere for that long.
        ArtifactError: If the file changes meanwhile.
    """
    size_bytes = file.entry.size_bytes
    # An empty part at the very end asks how much is there: the answer is that it is whole, or where to go on.
    offset, furthest, tries, moved_at = size_bytes, 0, 0, time.monotonic()
    while True:
        try:
            yield from ask(_put(federation, file, offset))
        except OffsetConflict as conflict:
            offset, moved = conflict.cursor, conflict.cursor > furthest
        except GoneError:
            raise
        except (UnreachableError, ConflictError):
            # A conflict: the server has not let go of a broken upload yet.
            if tries >= _FRUITLESS_TRIES or time.monotonic() - moved_at >= patience_s:
                raise
            offset, moved = size_bytes, False
            yield Pause(min(0.1 * 2**tries, _LONGEST_PAUSE_S))
        else:
            return
        if moved:
            furthest, tries, moved_at = offset, 0, time.monotonic()
        else:
            tries += 1
        if tries > 2 * _FRUITLESS_TRIES:
            raise UnreachableError(f"{file.entry.path} could not be uploaded: the server takes no part of it.")


def _put(federation: str, file: LocalFile, offset: int) -> Call[None]:
    size_bytes = file.entry.size_bytes
    headers = {
        "Upload-Offset": str(offset),
        "Upload-Length": str(size_bytes),
        "Content-Length": str(size_bytes - offset),
        "Content-Type": "application/octet-stream",
    }
    # Not repeated blindly: after a break the server is asked first how much it has.
    return Call(
        "PUT",
        path("federations", federation, "blobs", file.entry.digest),
        nothing,
        content=_reader(file, offset),
        headers=headers,
        repeatable=False,
        read_timeout_s=_ANSWER_S + size_bytes / _KEPT_BYTES_PER_S,
    )


def _reader(file: LocalFile, offset: int) -> Callable[[], Iterator[bytes]]:
    def read() -> Iterator[bytes]:
        left = file.entry.size_bytes - offset
        with file.path.open("rb") as source:
            source.seek(offset)
            while left:
                piece = source.read(min(_PIECE_BYTES, left))
                if not piece:
                    raise ArtifactError(f"{file.path} became shorter while it was uploaded.", hint="Upload it again.")
                left -= len(piece)
                yield piece

    return read


def fetch(where: str, entry: FileEntry, target: Path) -> Flow[None]:
    """Fetch a file, from the byte on that an earlier try came to; one that is there is not fetched again.

    Args:
        where: Path of a file that takes ranges.
        entry: Its digest and size.
        target: Where to put it.

    Raises:
        ArtifactError: If what arrives does not have its digest.
        UnreachableError: If it breaks again and again.
    """
    if target.is_file() and hash_file(target) == (entry.digest, entry.size_bytes):
        return
    part = target.with_name(f".{target.name}.{entry.digest[:12]}.part")
    tries = 0
    while (offset := part.stat().st_size if part.exists() else 0) < entry.size_bytes:
        with part.open("ab") as out:
            try:
                yield from ask(_get(where, entry.digest, offset, out))
            except UnreachableError:
                tries = 0 if out.tell() > offset else tries + 1
                if tries > _FRUITLESS_TRIES:
                    raise
            else:
                break
        yield Pause(min(0.1 * 2**tries, _LONGEST_PAUSE_S))
    found, _ = hash_file(part)
    if found != entry.digest:
        part.unlink()
        raise ArtifactError(
            f"{entry.path} arrived damaged: its digest is {found[:12]}…, not {entry.digest[:12]}….",
            hint="Fetch it again.",
        )
    with part.open("rb") as whole:
        os.fsync(whole.fileno())
    replace_file(part, target)


def _get(where: str, digest: str, offset: int, sink: Sink) -> Call[None]:
    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": f'"{digest}"'}
    return Call("GET", where, nothing, headers=headers, sink=sink, repeatable=False)
