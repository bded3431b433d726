"""One file on its way into a store: appended to, hashed, kept if its digest is the announced one.

Each write and each hash lets other threads run and waits for its turn again, which with many uploads costs more than
the bytes: so several pieces are written at once, and hashed many at a time once they are in the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, NoReturn

from filelock import FileLock

from tunefleet.errors import ArtifactError, MachineError, TooLargeError, is_disk_full
from tunefleet.fsutil import begin_writing

# So much is gathered before the disk begins with it, while the rest arrives.
_WRITE_OUT_BYTES: Final = 4 << 20
# So much, at most, is in the file and not hashed yet: the rest of a large one is not left for its end.
_UNHASHED_BYTES: Final = 32 << 20
_HASHED_AT_ONCE_BYTES: Final = 4 << 20
_MOST_PIECES: Final = os.sysconf("SC_IOV_MAX")
"""So many the system takes with one call."""


class Upload:
    """One file on its way into a store; made by `BlobStore.append`."""

    def __init__(
        self,
        *,
        digest: str,
        part: Path,
        keep: Callable[[Path, str], None],
        lock: FileLock,
        total: int,
        over: Callable[[], None],
    ) -> None:
        self.digest = digest
        self.total = total
        self.path = part
        self._keep = keep
        self._over: Callable[[], None] | None = over
        self._lock = lock
        self._hash = hashlib.sha256()
        self._file: IO[bytes] = part.open("a+b", buffering=0)
        self._hashed = 0
        self.offset = self._begun = os.fstat(self._file.fileno()).st_size
        self._hash_rest()

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def complete(self) -> bool:
        """Whether all bytes are here."""
        return self.offset == self.total

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes; raises as `write_all`."""
        self.write_all([data])

    def write_all(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Append bytes that came in pieces.

        Raises:
            TooLargeError: If they go beyond the announced length; nothing of them is kept.
            MachineError: If the disk is full; what fitted is kept and counted.
        """
        if self.offset + sum(map(len, pieces)) > self.total:
            raise TooLargeError(f"The upload of {self.digest[:12]}… has more than the {self.total:,} bytes announced.")
        rest = [memoryview(piece) for piece in pieces if piece]
        while rest:
            try:
                count = os.writev(self._file.fileno(), rest[:_MOST_PIECES])
            except OSError as error:
                self._no_room(error)
            self.offset += count
            rest = _behind(rest, count)
        if self.offset - self._hashed >= _UNHASHED_BYTES:
            self._hash_rest()
        if self.complete or self.offset - self._begun >= _WRITE_OUT_BYTES:
            self._begun = self.offset
            begin_writing(self._file.fileno())

    def finish(self) -> bool:
        """Put the file in its place, if it is whole.

        Raises:
            ArtifactError: If the content does not have the announced digest; what was sent is thrown away.
            MachineError: If the disk is full.
            UnreachableError: If the store does not answer; what was sent is kept.
        """
        if not self.complete:
            return False
        self.verify()
        try:
            os.fsync(self._file.fileno())
            self._keep(self.path, self.digest)
        except OSError as error:
            self._no_room(error)
        return True

    def verify(self) -> None:
        """Refuse a file that is not the announced one.

        Raises:
            ArtifactError: If the content does not have the announced digest; what was sent is thrown away.
        """
        self._hash_rest()
        if self._hash.hexdigest() != self.digest:
            self.discard()
            raise ArtifactError(
                f"The upload of {self.digest[:12]}… does not have the digest that was announced.",
                hint="The file changed or was damaged on the way; upload it again from the start.",
            )

    def discard(self) -> None:
        """Throw away what was sent: nobody goes on with it."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file; what was written stays for a later upload, and nothing if that was nothing."""
        over, self._over = self._over, None
        if over is not None:
            over()
        self._file.close()
        if self._lock.is_locked:
            if self.offset == 0:
                # The disk was full, or nothing came: an empty file is nothing to go on with.
                self.discard()
            let_go(self._lock, self.path)

    def _hash_rest(self) -> None:
        """Hash what is in the file and was not hashed yet."""
        if self._hashed == self.offset:
            return
        buffer = memoryview(bytearray(min(_HASHED_AT_ONCE_BYTES, self.offset - self._hashed)))
        while self._hashed < self.offset:
            count = os.preadv(self._file.fileno(), [buffer[: self.offset - self._hashed]], self._hashed)
            if not count:
                raise ArtifactError(f"The upload of {self.digest[:12]}… became shorter.", hint="Upload it again.")
            self._hash.update(buffer[:count])
            self._hashed += count

    def _no_room(self, error: OSError) -> NoReturn:
        if is_disk_full(error):
            raise MachineError(
                f"The disk at {self.path.parent} is full.", hint="Free some space or remove old artifacts."
            ) from error
        raise error


def _behind(pieces: list[memoryview], count: int) -> list[memoryview]:
    """Return what follows so many bytes of pieces."""
    for number, piece in enumerate(pieces):
        if count < len(piece):
            return [piece[count:], *pieces[number + 1 :]]
        count -= len(piece)
    return []


def let_go(lock: FileLock, part: Path) -> None:
    """Give up the right to write a part."""
    # Under the lock: whoever opened the file before finds it without a name, and does not take that for the lock.
    part.with_suffix(".lock").unlink(missing_ok=True)
    lock.release()
