"""One file on its way into a store: appended to, hashed as it comes, kept if its digest is the announced one."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Final, NoReturn

from filelock import FileLock

from tunefleet.artifacts.files import CHUNK_BYTES, begin_writing
from tunefleet.errors import ArtifactError, MachineError, TooLargeError

_WRITE_OUT_BYTES: Final = 4 << 20
"""So much is gathered before the disk begins with it, while the rest arrives."""
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Upload:
    """One file on its way into a store; made by `BlobStore.append`.

    Args:
        digest: What the whole file will have.
        part: What is here of it.
        keep: Puts a whole and synced file where the store keeps it.
        lock: Held for this upload, and let go by it.
        total: Length of the whole file in bytes.

    Attributes:
        path: Where it lies until it is kept; it must not be changed.
        offset: How much of it is here.
    """

    def __init__(
        self, *, digest: str, part: Path, keep: Callable[[Path, str], None], lock: FileLock, total: int
    ) -> None:
        self.digest = digest
        self.total = total
        self.path = part
        self._keep = keep
        self._lock = lock
        self._hash = hashlib.sha256()
        self._file: IO[bytes] = part.open("a+b", buffering=0)
        self.offset = self._begun = self._rehash()

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
        """Append bytes.

        Raises:
            TooLargeError: If they go beyond the announced length; nothing of them is kept.
            MachineError: If the disk is full; what fitted is kept and counted.
        """
        if self.offset + len(data) > self.total:
            raise TooLargeError(f"The upload of {self.digest[:12]}… has more than the {self.total:,} bytes announced.")
        rest = memoryview(data)
        while rest:
            try:
                count = self._file.write(rest) or 0
            except OSError as error:
                self._no_room(error)
            self._hash.update(rest[:count])
            self.offset += count
            rest = rest[count:]
        if self.complete or self.offset - self._begun >= _WRITE_OUT_BYTES:
            self._begun = self.offset
            begin_writing(self._file.fileno())

    def finish(self) -> bool:
        """Put the file in its place, if it is whole.

        Returns:
            False if bytes still lack; they can be sent later.

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
        """Let go of the file; what was written stays for a later upload."""
        self._file.close()
        if self._lock.is_locked:
            let_go(self._lock, self.path)

    def _rehash(self) -> int:
        self._file.seek(0)
        size_bytes = 0
        while chunk := self._file.read(CHUNK_BYTES):
            self._hash.update(chunk)
            size_bytes += len(chunk)
        return size_bytes

    def _no_room(self, error: OSError) -> NoReturn:
        if error.errno in _NO_SPACE:
            raise MachineError(
                f"The disk at {self.path.parent} is full.", hint="Free some space or remove old artifacts."
            ) from error
        raise error


def let_go(lock: FileLock, part: Path) -> None:
    """Give up the right to write a part."""
    # Under the lock: whoever opened the file before finds it without a name, and does not take that for the lock.
    part.with_suffix(".lock").unlink(missing_ok=True)
    lock.release()
