"""Content-addressed files in any kind of store, filled by resumable uploads.

`uploads/<digest>.part` is an unfinished upload, `<digest>.lock` is held by its writer, and `<digest>-<scope>.part`
belongs to a separate scope. Uploads are collected in a local folder, whatever the store: a file is stored only after
its content was hashed, so that its presence proves its content.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from tunefleet.artifacts.direct import DirectUploads
from tunefleet.artifacts.manifest import is_digest
from tunefleet.artifacts.upload import Upload, let_go
from tunefleet.errors import ArtifactError, ConflictError, MachineError, NotFoundError, OffsetConflict
from tunefleet.fsutil import disk_free

_log = logging.getLogger(__name__)
_ANNOUNCED_S: Final = 60.0
"""Time limit from an upload's announcement to its first byte."""
# After this time without data, an upload counts only with its received bytes.
_ASLEEP_S: Final = 600.0


class NoRoomError(MachineError):
    """There is not enough disk space for a file."""


@dataclass(frozen=True, slots=True)
class Link:
    """A temporary URL that downloads a file without a key; the URL itself is a secret."""

    url: str


class BlobStore(ABC):
    """Content-addressed files; thread-safe. Every method except `partial_size` may block."""

    executor: Executor | None = None
    """Threads for `Upload.finish` and `Intake.finish` if they take long; `None`: any thread."""

    limit_bytes: int | None = None
    """Limit for the total size of all files; `None`: no limit."""
    used_bytes: int = 0
    """Current total size; maintained by the caller, which knows all files."""
    others_write: bool = False
    """Whether other processes write and delete in the same store."""
    may_rot: bool = False
    """Whether the store itself cannot detect corrupted files."""
    direct: DirectUploads | None = None
    """Direct uploads by workers; `None` if all files pass through the server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uploads = root / "uploads"
        # One by one: `mkdir` ignores the mode for parents.
        for folder in (root, self.uploads):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._promised = 0
        self._promising = threading.Lock()
        self._announced: dict[tuple[str, str], tuple[int, float]] = {}

    @abstractmethod
    def find(self, digest: str) -> int | None:
        """Return the size of a file in bytes; `None` if it is not stored completely.

        Raises:
            UnreachableError: If the store is unreachable; every other method raises it, too.
        """

    @abstractmethod
    def source(self, digest: str, filename: str) -> Path | Link:
        """Return where a file can be read; it must not be changed."""

    @abstractmethod
    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield the content of a file in pieces of at most one megabyte.

        Raises:
            NotFoundError: If it is not stored; raised with the first piece.
        """

    @abstractmethod
    def kept_before(self, at: float) -> dict[str, int]:
        """Return digest and size in bytes of each file that was stored before a Unix time."""

    @abstractmethod
    def keep(self, part: Path, digest: str) -> None:
        """Store a file with a verified digest; `part` is removed."""

    @abstractmethod
    def delete(self, digest: str) -> None:
        """Delete a file: fast, and it is no longer found; a running upload of it continues."""

    def set_aside(self, digest: str) -> bool:  # noqa: ARG002 a service has checksums of its own
        """Move a damaged file to quarantine; returns whether there was one."""
        return False

    def close(self) -> None:  # noqa: B027 a folder has nothing to close
        """Close the store."""

    def read(self, digest: str) -> bytes:
        """Return the content of a small file."""
        return b"".join(self.pieces(digest))

    def has(self, digest: str) -> bool:
        """Return whether the complete file is stored."""
        return self.find(digest) is not None

    def size(self, digest: str) -> int:
        """Return the size of a file in bytes."""
        size_bytes = self.find(digest)
        if size_bytes is None:
            raise not_here(digest)
        return size_bytes

    def partial_size(self, digest: str, scope: str = "") -> int:
        """Return how many bytes an unfinished upload has; 0 if there is none. For `scope` see `append`."""
        try:
            return self._part(digest, scope).stat().st_size
        except FileNotFoundError:
            return 0

    def announce(self, digest: str, size_bytes: int, scope: str, check: Callable[[int], None]) -> None:
        """Count an upload with its full size from now on, before its first byte, if `check` allows it.

        Args:
            check: Called with the stored or announced bytes of all other unfinished uploads of the scope; may raise.
                Concurrent announcements are checked one after another.
        """
        with self._promising:
            check(self._unfinished_bytes(scope, but=digest))
            self._announced[scope, digest] = size_bytes, time.monotonic()

    def _unfinished_bytes(self, scope: str, *, but: str) -> int:
        here: dict[str, tuple[int, float]] = {}
        now, wall = time.monotonic(), time.time()
        for part in self.uploads.glob(f"*{_suffix(scope)}.part"):
            name = part.name.removesuffix(f"{_suffix(scope)}.part")
            if is_digest(name):
                with contextlib.suppress(FileNotFoundError):  # it was finished, or swept
                    status = part.stat()
                    here[name] = status.st_size, wall - status.st_mtime
        counted = {name: size_bytes for name, (size_bytes, _) in here.items()}
        for (whose, name), (size_bytes, at) in list(self._announced.items()):
            if whose != scope:
                continue
            if _lapsed(now - at, here.get(name)):
                del self._announced[whose, name]
            else:
                counted[name] = max(counted.get(name, 0), size_bytes)
        return sum(size_bytes for name, size_bytes in counted.items() if name != but)

    def append(self, digest: str, offset: int, total: int, scope: str = "") -> Upload:
        """Resume or start an upload.

        Args:
            offset: Offset of the first byte; must be `partial_size(digest, scope)`.

        Returns:
            A context manager; written bytes are kept however it is left.

        Raises:
            OffsetConflict: If the offset is not the end of the upload; contains the expected one.
            ConflictError: If another process is writing the same file.
            TooLargeError: If there are more bytes than announced.
            NoRoomError: If there is not enough disk space.
        """
        if offset < 0 or total < offset:
            raise ArtifactError(f"An upload cannot start at byte {offset} of {total}.")
        part = self._part(digest, scope)
        lock = FileLock(part.with_suffix(".lock"), thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ConflictError(
                f"The file {digest[:12]}… is being uploaded by another request.", hint="Try again in a moment."
            ) from None
        try:
            return self._open(digest, part, lock, offset, total, scope)
        except BaseException:
            let_go(lock, part)
            raise

    def _open(self, digest: str, part: Path, lock: FileLock, offset: int, total: int, scope: str) -> Upload:
        have = part.stat().st_size if part.exists() else 0
        if have > total:
            # It was announced with another length. The digest decides which is right, so start over.
            part.unlink()
            have = 0
        if offset != have:
            raise OffsetConflict(f"The upload of {digest[:12]}… continues at byte {have}, not {offset}.", cursor=have)
        # The received part does not count as used yet, so check the full size.
        self.within_limit(total)
        self.expect(total - have)
        # Reserve the space until the upload ends, so that no other upload gets it.
        self._promise(total)
        try:
            return Upload(
                digest=digest,
                part=part,
                keep=lambda part, digest: self.keep_announced(part, digest, scope),
                lock=lock,
                total=total,
                over=lambda: self._promise(-total),
            )
        except BaseException:
            self._promise(-total)
            raise

    def keep_announced(self, part: Path, digest: str, scope: str) -> None:
        """Store a file like `keep`; from now on its row counts instead of its announcement."""
        self.keep(part, digest)
        with self._promising:
            self._announced.pop((scope, digest), None)

    def _promise(self, size_bytes: int) -> None:
        with self._promising:
            self._promised += size_bytes

    def expect(self, size_bytes: int) -> None:
        """Check that there is enough space for a file.

        Raises:
            NoRoomError: If there is not, or the server's storage limit is exceeded.
        """
        self.within_limit(size_bytes)
        free = disk_free(self.root)
        if size_bytes > free:
            raise NoRoomError(
                f"Not enough disk space at {self.root}: {free:,} bytes free, {size_bytes:,} needed.",
                hint="Free some space or delete old artifacts.",
            )

    def within_limit(self, size_bytes: int) -> None:
        """Check that a file fits into the server's storage limit.

        Raises:
            NoRoomError: If it does not.
        """
        if self.limit_bytes is not None and self.used_bytes + self._promised + size_bytes > self.limit_bytes:
            raise NoRoomError(
                f"Storage limit exceeded: {self.used_bytes:,} of {self.limit_bytes:,} bytes used, "
                f"{size_bytes:,} needed.",
                hint="Free space (`tunefleet prune`, `tunefleet data rm`), or raise TUNEFLEET_STORAGE_LIMIT_BYTES.",
            )

    def sweep_partials(self, older_than_s: float) -> int:
        """Delete abandoned uploads."""
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
                    _log.info("Removed the unfinished upload %s (%d bytes).", part.stem, found.st_size)
            except FileNotFoundError:
                continue
            finally:
                let_go(lock, part)
        return freed

    def _part(self, digest: str, scope: str) -> Path:
        return self.uploads / f"{checked(digest)}{_suffix(scope)}.part"


def _lapsed(announced_s: float, here: tuple[int, float] | None) -> bool:
    """Return whether an announcement has expired: the upload never started, or was abandoned.

    Args:
        here: Received bytes, and seconds since the last of them; `None` if there are none.
    """
    return announced_s > _ANNOUNCED_S if here is None else min(announced_s, here[1]) > _ASLEEP_S


def _suffix(scope: str) -> str:
    return f"-{hashlib.sha256(scope.encode()).hexdigest()[:16]}" if scope else ""


def checked(digest: str) -> str:
    """Return a valid digest.

    Raises:
        ArtifactError: If it is invalid: nothing else may become part of a path.
    """
    if not is_digest(digest):
        raise ArtifactError(f"{digest[:80]!r} is not a SHA-256 digest.")
    return digest


def not_here(digest: str) -> NotFoundError:
    """Return the error for a file that is not stored."""
    return NotFoundError(f"No file with digest {digest}.")
