"""One resumable upload: appended to, hashed, and stored if it has the announced digest.

Each write and each hash releases the GIL and waits for it again, which with many uploads costs more than the bytes: so
several pieces are written in one call, and hashed in large blocks once they are in the file.
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

# After this many bytes the kernel is asked to start writing, while the rest arrives.
_WRITE_OUT_BYTES: Final = 4 << 20
# Most bytes in the file that are not hashed yet, so that a large file is not hashed only at its end.
_UNHASHED_BYTES: Final = 32 << 20
_HASHED_AT_ONCE_BYTES: Final = 4 << 20
_MOST_PIECES: Final = os.sysconf("SC_IOV_MAX")
"""The system's limit of buffers per `writev` call."""


class Upload:
    """A resumable upload; created by `BlobStore.append`."""

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
        """Whether all bytes are received."""
        return self.offset == self.total

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes; raises as `write_all`."""
        self.write_all([data])

    def write_all(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Append pieces of bytes.

        Raises:
            TooLargeError: If they exceed the announced size; none of them is written.
            MachineError: If the disk is full; the bytes that fitted are kept.
        """
        if self.offset + sum(map(len, pieces)) > self.total:
            raise TooLargeError(f"The upload of {self.digest[:12]}… exceeds the announced {self.total:,} bytes.")
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
        """Store the file if it is complete.

        Raises:
            ArtifactError: If the digest does not match; the upload is deleted.
            MachineError: If the disk is full.
            UnreachableError: If the store does not respond; the upload is kept.
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
        """Check the digest of the upload.

        Raises:
            ArtifactError: If the digest does not match; the upload is deleted.
        """
        self._hash_rest()
        if self._hash.hexdigest() != self.digest:
            self.discard()
            raise ArtifactError(
                f"The digest of upload {self.digest[:12]}… does not match.",
                hint="The file changed or was corrupted in transfer. Upload it again from the start.",
            )

    def discard(self) -> None:
        """Delete the received bytes."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; received bytes stay for a later upload, an empty file is deleted."""
        over, self._over = self._over, None
        if over is not None:
            over()
        self._file.close()
        if self._lock.is_locked:
            if self.offset == 0:
                # The disk was full, or no data arrived: an empty file cannot be resumed.
                self.discard()
            let_go(self._lock, self.path)

    def _hash_rest(self) -> None:
        """Hash the bytes in the file that are not hashed yet."""
        if self._hashed == self.offset:
            return
        buffer = memoryview(bytearray(min(_HASHED_AT_ONCE_BYTES, self.offset - self._hashed)))
        while self._hashed < self.offset:
            count = os.preadv(self._file.fileno(), [buffer[: self.offset - self._hashed]], self._hashed)
            if not count:
                raise ArtifactError(f"The upload of {self.digest[:12]}… was truncated.", hint="Upload it again.")
            self._hash.update(buffer[:count])
            self._hashed += count

    def _no_room(self, error: OSError) -> NoReturn:
        if is_disk_full(error):
            raise MachineError(
                f"The disk at {self.path.parent} is full.", hint="Free some space or delete old artifacts."
            ) from error
        raise error


def _behind(pieces: list[memoryview], count: int) -> list[memoryview]:
    """Return the pieces after the first `count` bytes."""
    for number, piece in enumerate(pieces):
        if count < len(piece):
            return [piece[count:], *pieces[number + 1 :]]
        count -= len(piece)
    return []


def let_go(lock: FileLock, part: Path) -> None:
    """Release the lock of an upload."""
    # Unlinked while locked: a process that opened the file earlier notices that it has no name and does not use it.
    part.with_suffix(".lock").unlink(missing_ok=True)
    lock.release()
