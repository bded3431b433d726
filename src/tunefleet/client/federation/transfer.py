"""Transfers one file between a worker and its federation: resumable, every digest verified.

The federation's blob routes work like those of artifacts (`transfer`), under a path that the federation's token may
use.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final, Self

from tunefleet.artifacts import LocalFile, hash_file, replace_file
from tunefleet.client.call import Call, Flow, Pause, Sink, ask, model, nothing, path
from tunefleet.errors import ArtifactError, ConflictError, GoneError, OffsetConflict, UnreachableError
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.federated import UpdateCreate, UpdateTaken

# A file up to this size is sent in the same request as its update.
AT_ONCE_BYTES: Final = 64 << 20
_BEFORE_APART_S: Final = 0.1
_PIECE_BYTES: Final = 1 << 20
_FRUITLESS_TRIES: Final = 8
"""Consecutive interruptions without progress before a transfer fails."""
_LONGEST_PAUSE_S: Final = 5.0
_ANSWER_S: Final = 60.0
_KEPT_BYTES_PER_S: Final = 20e6
"""Lowest assumed rate at which a server verifies and stores a file before it responds."""


def give(federation: str, file: LocalFile, update: UpdateCreate, patience_s: float) -> Flow[UpdateTaken]:
    """Send an update and its file: in one request if the file is small, else (or after an interruption) separately.

    Args:
        update: The update's metadata.
        patience_s: Seconds without progress before the transfer fails.

    Raises:
        GoneError: If the federation has ended.
        UnreachableError: If there is no progress for that long.
    """
    if file.entry.size_bytes <= AT_ONCE_BYTES:
        try:
            return (yield from ask(together(federation, file, update)))
        except GoneError:
            raise
        except (UnreachableError, ConflictError):
            # The update may have been accepted and the response lost; or a part of the file is stored.
            # Give the server a moment to release the interrupted upload, which it locks while it writes.
            yield Pause(_BEFORE_APART_S)
        try:
            return (yield from ask(announced(federation, update)))
        except ArtifactError:
            pass  # the file is incomplete: resume it
        return (yield from give_rest(federation, file, update, patience_s))
    yield from send(federation, file, patience_s)
    return (yield from ask(announced(federation, update)))


def give_rest(federation: str, file: LocalFile, update: UpdateCreate, patience_s: float) -> Flow[UpdateTaken]:
    """Send the missing part of an update that the server may have accepted or be processing; raises as `give` does.

    Args:
        update: The update's metadata.
        patience_s: Seconds without progress before the transfer fails.
    """
    taken = yield from send(federation, file, patience_s, update)
    return taken if taken is not None else (yield from ask(announced(federation, update)))


def announced(federation: str, update: UpdateCreate) -> Call[UpdateTaken]:
    """Return the call that submits the metadata of an uploaded file."""
    return Call("POST", path("federations", federation, "updates"), model(UpdateTaken), body=update)


def together(
    federation: str, file: LocalFile, update: UpdateCreate, *, heard: Callable[[], None] | None = None
) -> Call[UpdateTaken]:
    """Return the call that sends an update and its file in one request.

    Args:
        update: The update's metadata.
        heard: Called before the last bytes are sent; until then the server cannot have accepted it.
    """
    metadata = update.model_dump_json(exclude_none=True).encode()

    def content() -> Iterator[bytes]:
        yield metadata
        left = file.entry.size_bytes
        for piece in _reader(file, 0)():
            left -= len(piece)
            if heard is not None and not left:
                heard()
            yield piece

    size_bytes = file.entry.size_bytes
    headers = {
        "Update-Length": str(len(metadata)),
        "Content-Length": str(len(metadata) + size_bytes),
        "Content-Type": "application/octet-stream",
    }
    return Call(
        "PUT",
        path("federations", federation, "updates"),
        model(UpdateTaken),
        content=content,
        headers=headers,
        repeatable=False,
        read_timeout_s=_ANSWER_S + size_bytes / _KEPT_BYTES_PER_S,
    )


def send(
    federation: str, file: LocalFile, patience_s: float, update: UpdateCreate | None = None
) -> Flow[UpdateTaken | None]:
    """Upload a file, resuming earlier calls; a file that is already stored is not sent again.

    Args:
        patience_s: Seconds without progress before it fails.
        update: An update that the server may have accepted or be processing with this file; its status is checked
            before the complete file is sent again.

    Returns:
        The accepted update, if there is one; the file is then not sent.

    Raises:
        GoneError: If the federation has ended.
        UnreachableError: If there is no progress for that long.
        ArtifactError: If the file changes during the upload.
    """
    size_bytes = file.entry.size_bytes
    # Start with an empty part at the end of the file: the response is either success or the offset to resume at.
    offset, furthest, tries, moved_at = size_bytes, 0, 0, time.monotonic()
    while True:
        try:
            yield from ask(_put(federation, file, offset))
        except OffsetConflict as conflict:
            offset, moved = conflict.cursor, conflict.cursor > furthest
            doubtful = not offset
        except GoneError:
            raise
        except (UnreachableError, ConflictError) as error:
            # A conflict means that the server has not released an interrupted upload yet.
            doubtful = isinstance(error, ConflictError)
            if tries >= _FRUITLESS_TRIES or time.monotonic() - moved_at >= patience_s:
                raise
            offset, moved = size_bytes, False
            yield Pause(min(0.1 * 2**tries, _LONGEST_PAUSE_S))
        else:
            return None
        taken = yield from _known(federation, update if doubtful else None)
        if taken is not None:
            return taken
        if moved:
            furthest, tries, moved_at = offset, 0, time.monotonic()
        else:
            tries += 1
        if tries > 2 * _FRUITLESS_TRIES:
            raise UnreachableError(f"Cannot upload {file.entry.path}: the server accepts no part of it.")


def _known(federation: str, update: UpdateCreate | None) -> Flow[UpdateTaken | None]:
    if update is None:
        return None
    try:
        return (yield from ask(announced(federation, update)))
    except ArtifactError:
        return None  # not accepted yet


def _put(federation: str, file: LocalFile, offset: int) -> Call[None]:
    size_bytes = file.entry.size_bytes
    headers = {
        "Upload-Offset": str(offset),
        "Upload-Length": str(size_bytes),
        "Content-Length": str(size_bytes - offset),
        "Content-Type": "application/octet-stream",
    }
    # Not retried: after an interruption, first ask the server how much it has.
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
                    raise ArtifactError(f"{file.path} was truncated during the upload.", hint="Upload it again.")
                left -= len(piece)
                yield piece

    return read


def part_in(folder: Path) -> Path:
    """Return the path of an incomplete version in a folder."""
    return folder / f".newest-{secrets.token_hex(4)}.part"


def sweep(folder: Path) -> None:
    """Remove incomplete versions of a killed process; no other process may be downloading into the folder."""
    for left in folder.glob(".newest-*.part"):
        left.unlink()


class _LazyFile:
    """A file that is created with its first byte, so that a long poll holds no file open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, data: bytes, /) -> None:
        if self._file is None:
            self._file = self._path.open("wb")
        self._file.write(data)

    def sync(self) -> None:
        """Flush the file to disk, if it was created."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())


def fetch_newest(federation: str, after: int, wait_s: float, part: Path, metadata: dict[str, str]) -> Flow[None]:
    """Wait for a version newer than `after`, and download its weights in the same request.

    Args:
        wait_s: How long to wait.
        part: Target of the weights; created with their first byte, overwritten if it exists.
        headers_out: Filled with the response headers, in lower case; without `version` there is no newer one.

    Raises:
        ArtifactError: If the download does not match its digest.
        UnreachableError: If the connection breaks.
    """

    def heard(headers: Mapping[str, str]) -> None:
        metadata.update({name.lower(): value for name, value in headers.items()})

    where, params = path("federations", federation, "versions", "newest", "adapter"), {"after": after, "wait_s": wait_s}
    with _LazyFile(part) as out:
        headers = {"Accept-Encoding": "identity"}
        patient_s = wait_s + _ANSWER_S
        yield from ask(
            Call(
                "GET",
                where,
                nothing,
                params=params,
                headers=headers,
                sink=out,
                heard=heard,
                repeatable=False,
                read_timeout_s=patient_s,
            )
        )
        if "version" not in metadata:
            return
        out.sync()
    found, _ = hash_file(part)
    if f'"{found}"' != metadata.get("etag"):
        part.unlink()
        raise ArtifactError(f"Version {metadata['version']} was corrupted in transfer.", hint="Download it again.")


def fetch(where: str, entry: FileEntry, target: Path) -> Flow[None]:
    """Download a file, resuming an earlier download; a file that exists already is not downloaded again.

    Args:
        where: API path of the file, which must support ranges.
        entry: Its digest and size.
        target: Local path.

    Raises:
        ArtifactError: If the download does not match its digest.
        UnreachableError: If it is interrupted repeatedly.
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
            f"{entry.path} was corrupted in transfer: its digest is {found[:12]}…, not {entry.digest[:12]}….",
            hint="Download it again.",
        )
    with part.open("rb") as whole:
        # Before the rename: after a power cut the final name must not refer to missing data.
        os.fsync(whole.fileno())
    replace_file(part, target)


def _get(where: str, digest: str, offset: int, sink: Sink) -> Call[None]:
    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": f'"{digest}"'}
    return Call("GET", where, nothing, headers=headers, sink=sink, repeatable=False)
