"""A folder of files named by their digest, filled by uploads that may break and go on.

    <root>/blobs/ab/<digest>       whole and verified; never changed again
    <root>/uploads/<digest>.part   what an unfinished upload left
    <root>/uploads/<digest>.lock   held by the one who writes it

A name under `blobs` appears only after its content was hashed and synced, so its presence is proof of its content.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Final, NoReturn

from filelock import FileLock, Timeout

from tunefleet.artifacts.files import CHUNK_BYTES, disk_free, fsync_dir
from tunefleet.artifacts.manifest import is_digest
from tunefleet.errors import ArtifactError, ConflictError, MachineError, NotFoundError, OffsetConflict, TooLargeError

_log = logging.getLogger(__name__)
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class BlobStore:
    """Content-addressed files in a folder; safe for several threads and processes.

    Args:
        root: The folder; made if it does not exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uploads = root / "uploads"
        self._blobs = root / "blobs"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self.uploads.mkdir(parents=True, exist_ok=True)

    def has(self, digest: str) -> bool:
        """Whether the whole file is here."""
        return self._path(digest).is_file()

    def path(self, digest: str) -> Path:
        """Return where a file lies; it must not be changed.

        Raises:
            NotFoundError: If it is not here.
        """
        path = self._path(digest)
        if not path.is_file():
            raise NotFoundError(f"There is no file with the digest {digest}.")
        return path

    def place(self, digest: str) -> Path:
        """Return where a file lies, or would lie."""
        return self._path(digest)

    def size(self, digest: str) -> int:
        """Return the length of a file in bytes.

        Raises:
            NotFoundError: If it is not here.
        """
        return self.path(digest).stat().st_size

    def partial_size(self, digest: str) -> int:
        """Return how many bytes an unfinished upload left; 0 if there is none."""
        try:
            return self._part(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def digests(self) -> Iterator[str]:
        """Yield the digest of every file that is here."""
        for folder in self._blobs.iterdir():
            if folder.is_dir():
                yield from (file.name for file in folder.iterdir() if is_digest(file.name))

    def append(self, digest: str, offset: int, total: int) -> Upload:
        """Go on with an upload, or start one.

        Args:
            digest: What the whole file will have.
            offset: Where the first byte belongs; must be `partial_size(digest)`.
            total: Length of the whole file.

        Returns:
            A context manager; it keeps what was written when it is left, whatever happens.

        Raises:
            OffsetConflict: If the offset is not where the upload stands; carries where it stands.
            ConflictError: If somebody else is writing the same file.
            TooLargeError: If more bytes are here than the file is said to have.
            MachineError: If the disk has no room for the rest.
        """
        if offset < 0 or total < offset:
            raise ArtifactError(f"An upload cannot start at byte {offset} of {total}.")
        part = self._part(digest)
        lock = FileLock(part.with_suffix(".lock"), thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ConflictError(
                f"The file {digest[:12]}… is being uploaded by somebody else.", hint="Try again in a moment."
            ) from None
        try:
            return self._open(digest, part, lock, offset, total)
        except BaseException:
            _let_go(lock, part)
            raise

    def _open(self, digest: str, part: Path, lock: FileLock, offset: int, total: int) -> Upload:
        have = self.partial_size(digest)
        if have > total:
            # It was announced with another length; the digest decides, and this start may be the right one.
            part.unlink()
            have = 0
        if offset != have:
            raise OffsetConflict(f"The upload of {digest[:12]}… goes on at byte {have}, not {offset}.", cursor=have)
        free = disk_free(self.root)
        if total - have > free:
            raise MachineError(
                f"The disk at {self.root} has {free:,} bytes free; the file needs {total - have:,} more.",
                hint="Free some space or remove old artifacts.",
            )
        return Upload(digest=digest, part=part, target=self._path(digest), lock=lock, total=total)

    def delete(self, digest: str) -> bool:
        """Remove a file and what an upload of it left.

        Returns:
            Whether the file was here.
        """
        self._part(digest).unlink(missing_ok=True)
        try:
            self._path(digest).unlink()
        except FileNotFoundError:
            return False
        return True

    def sweep_partials(self, older_than_s: float) -> int:
        """Remove what uploads left that nobody has gone on with.

        Args:
            older_than_s: Age of the last write, in seconds.

        Returns:
            Bytes that were freed.
        """
        limit = time.time() - older_than_s
        freed = 0
        for part in self.uploads.glob("*.part"):
            lock = FileLock(part.with_suffix(".lock"), thread_local=False)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue  # being written right now
            try:
                found = part.stat()
                if found.st_mtime <= limit:
                    part.unlink()
                    freed += found.st_size
                    _log.info("removed the unfinished upload %s (%d bytes)", part.stem, found.st_size)
            except FileNotFoundError:
                continue
            finally:
                _let_go(lock, part)
        return freed

    def _path(self, digest: str) -> Path:
        return self._blobs / _checked(digest)[:2] / digest

    def _part(self, digest: str) -> Path:
        return self.uploads / f"{_checked(digest)}.part"


class Upload:
    """One file on its way into the store; made by `BlobStore.append`."""

    def __init__(self, *, digest: str, part: Path, target: Path, lock: FileLock, total: int) -> None:
        self.digest = digest
        self.total = total
        self._part = part
        self._target = target
        self._lock = lock
        self._hash = hashlib.sha256()
        self._file: IO[bytes] = part.open("a+b", buffering=0)
        self.offset = self._rehash()

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

    def finish(self) -> bool:
        """Put the file in its place, if it is whole.

        Returns:
            False if bytes still lack; they can be sent later.

        Raises:
            ArtifactError: If the content does not have the announced digest; what was sent is thrown away.
            MachineError: If the disk is full.
        """
        if not self.complete:
            return False
        if self._hash.hexdigest() != self.digest:
            self._part.unlink(missing_ok=True)
            raise ArtifactError(
                f"The upload of {self.digest[:12]}… does not have the digest that was announced.",
                hint="The file changed or was damaged on the way; upload it again from the start.",
            )
        try:
            os.fsync(self._file.fileno())
            if not self._target.parent.exists():
                self._target.parent.mkdir(exist_ok=True)
                fsync_dir(self._target.parent.parent)
            self._part.replace(self._target)
            fsync_dir(self._target.parent)
        except OSError as error:
            self._no_room(error)
        return True

    def close(self) -> None:
        """Let go of the file; what was written stays for a later upload."""
        self._file.close()
        if self._lock.is_locked:
            _let_go(self._lock, self._part)

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
                f"The disk at {self._part.parent} is full.", hint="Free some space or remove old artifacts."
            ) from error
        raise error


def _let_go(lock: FileLock, part: Path) -> None:
    # Under the lock: whoever opened the file before finds it without a name, and does not take that for the lock.
    part.with_suffix(".lock").unlink(missing_ok=True)
    lock.release()


def _checked(digest: str) -> str:
    if not is_digest(digest):
        raise ArtifactError(f"{digest[:80]!r} is not a sha256 digest.")
    return digest
