"""Move one file between a worker and its federation: resumable, every digest checked.

The federation's blob routes are those of artifacts (`transfer`) under an address that the federation's token reaches.
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

# A file up to this length goes with its update.
AT_ONCE_BYTES: Final = 64 << 20
_BEFORE_APART_S: Final = 0.1
_PIECE_BYTES: Final = 1 << 20
_FRUITLESS_TRIES: Final = 8
"""So often a transfer may break in a row without a byte getting through."""
_LONGEST_PAUSE_S: Final = 5.0
_ANSWER_S: Final = 60.0
_KEPT_BYTES_PER_S: Final = 20e6
"""So slow, at worst, a server checks and keeps a file before it answers."""


def give(federation: str, file: LocalFile, update: UpdateCreate, patience_s: float) -> Flow[UpdateTaken]:
    """Send an update and its file: in one request if the file is small, and else, or where that breaks, apart.

    Args:
        update: What they are.
        patience_s: How long sending the file may get nowhere.

    Raises:
        GoneError: If the federation has ended.
        UnreachableError: If the server does not answer for that long.
    """
    if file.entry.size_bytes <= AT_ONCE_BYTES:
        try:
            return (yield from ask(together(federation, file, update)))
        except GoneError:
            raise
        except (UnreachableError, ConflictError):
            # It may have been taken, and the answer was lost; or a part of the file is there.
            yield Pause(_BEFORE_APART_S)
        try:
            return (yield from ask(announced(federation, update)))
        except ArtifactError:
            pass  # the file is not there: it goes on from where it broke
        return (yield from give_rest(federation, file, update, patience_s))
    yield from send(federation, file, patience_s)
    return (yield from ask(announced(federation, update)))


def give_rest(federation: str, file: LocalFile, update: UpdateCreate, patience_s: float) -> Flow[UpdateTaken]:
    """Send what the server does not have of an update that it may have taken, or may be taking now; raises as `give`.

    Args:
        update: What they are.
        patience_s: How long sending the file may get nowhere.
    """
    taken = yield from send(federation, file, patience_s, update)
    return taken if taken is not None else (yield from ask(announced(federation, update)))


def announced(federation: str, update: UpdateCreate) -> Call[UpdateTaken]:
    """Return the call that says what a file is that was sent."""
    return Call("POST", path("federations", federation, "updates"), model(UpdateTaken), body=update)


def together(
    federation: str, file: LocalFile, update: UpdateCreate, *, heard: Callable[[], None] | None = None
) -> Call[UpdateTaken]:
    """Return the call that sends an update and its file.

    Args:
        update: What they are.
        heard: Called before the last bytes go: before that the server cannot have taken it.
    """
    told = update.model_dump_json(exclude_none=True).encode()

    def content() -> Iterator[bytes]:
        yield told
        left = file.entry.size_bytes
        for piece in _reader(file, 0)():
            left -= len(piece)
            if heard is not None and not left:
                heard()
            yield piece

    size_bytes = file.entry.size_bytes
    headers = {
        "Update-Length": str(len(told)),
        "Content-Length": str(len(told) + size_bytes),
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
    """Send a file, from the byte on that earlier calls came to; one that is there is not sent again.

    Args:
        patience_s: How long it may get nowhere.
        update: The one that the server may have taken with this file: then it lets go of it, or is still at it, and is
            asked before all of it is sent again.

    Returns:
        What became of the update, if it was taken; the file is not sent then.

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
            doubtful = not offset
        except GoneError:
            raise
        except (UnreachableError, ConflictError) as error:
            # A conflict: the server has not let go of a broken upload yet.
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
            raise UnreachableError(f"{file.entry.path} could not be uploaded: the server takes no part of it.")


def _known(federation: str, update: UpdateCreate | None) -> Flow[UpdateTaken | None]:
    if update is None:
        return None
    try:
        return (yield from ask(announced(federation, update)))
    except ArtifactError:
        return None  # it has not been taken


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


def part_in(folder: Path) -> Path:
    """Return where a version lies in a folder until it is whole."""
    return folder / f".newest-{secrets.token_hex(4)}.part"


def sweep(folder: Path) -> None:
    """Remove what a process that was killed had fetched of a version; nobody else may be fetching into the folder."""
    for left in folder.glob(".newest-*.part"):
        left.unlink()


class _Late:
    """A file that is made with its first byte: a server that holds its answer for long keeps nothing open here."""

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
        """Make it survive a power cut, if there is one."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())


def fetch_newest(federation: str, after: int, wait_s: float, part: Path, told: dict[str, str]) -> Flow[None]:
    """Wait for a version that is newer than one, and fetch its weights with the same request.

    Args:
        wait_s: How long to wait.
        part: Takes the weights; it is made with their first byte, and overwritten if it is there.
        told: Gets the answer's headers, in lower case; without `version` there is none that is newer.

    Raises:
        ArtifactError: If what arrives does not have its digest.
        UnreachableError: If it breaks.
    """

    def heard(headers: Mapping[str, str]) -> None:
        told.update({name.lower(): value for name, value in headers.items()})

    where, params = path("federations", federation, "versions", "newest", "adapter"), {"after": after, "wait_s": wait_s}
    with _Late(part) as out:
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
        if "version" not in told:
            return
        out.sync()
    found, _ = hash_file(part)
    if f'"{found}"' != told.get("etag"):
        part.unlink()
        raise ArtifactError(f"Version {told['version']} arrived damaged.", hint="Fetch it again.")


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
