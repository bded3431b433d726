"""Files named by their digest, wherever they are kept; filled by uploads that may break and go on.

    <root>/uploads/<digest>.part           what an unfinished upload left
    <root>/uploads/<digest>.lock           held by the one who writes it
    <root>/uploads/<digest>-<scope>.part   the same of who is kept apart from others

Uploads gather in a folder, whatever the store: a file is kept only after its content was hashed, so that its presence
in the store is proof of its content.
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
"""So long an upload may take from its announcement to its first byte."""
# An upload that has brought nothing for so long counts only with what is here of it.
_ASLEEP_S: Final = 600.0


class NoRoomError(MachineError):
    """The disk has no room for a file."""


@dataclass(frozen=True, slots=True)
class Link:
    """An address from which a file can be fetched without a key, for a while; it is a secret of its own."""

    url: str


class BlobStore(ABC):
    """Content-addressed files; safe for several threads. All of it may block, but for `partial_size`."""

    executor: Executor | None = None
    """Threads for `Upload.finish` and `Intake.finish`, where those take long; null: any will do."""

    limit_bytes: int | None = None
    """How much all files together may take; null: what there is."""
    used_bytes: int = 0
    """How much they take; counted by who knows all of them."""
    others_write: bool = False
    """Whether other processes write and delete here too."""
    may_rot: bool = False
    """Whether nobody but we would notice that a disk has changed a file."""
    direct: DirectUploads | None = None
    """Lets workers send files to where they are kept; null where everything passes through the server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uploads = root / "uploads"
        # Of parents `mkdir` would forget the mode.
        for folder in (root, self.uploads):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._promised = 0
        self._promising = threading.Lock()
        self._announced: dict[tuple[str, str], tuple[int, float]] = {}

    @abstractmethod
    def find(self, digest: str) -> int | None:
        """Return the length of a file in bytes; null if it is not here whole.

        Raises:
            UnreachableError: If the store does not answer; so does every other method.
        """

    @abstractmethod
    def source(self, digest: str, filename: str) -> Path | Link:
        """Return where a file can be read; it must not be changed."""

    @abstractmethod
    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield the content of a file, in pieces of a megabyte at most.

        Raises:
            NotFoundError: If it is not here; with the first piece.
        """

    @abstractmethod
    def kept_before(self, at: float) -> dict[str, int]:
        """Return digest and size in bytes of each file that was kept before a Unix time."""

    @abstractmethod
    def keep(self, part: Path, digest: str) -> None:
        """Keep a file whose digest was verified; `part` is gone afterwards."""

    @abstractmethod
    def delete(self, digest: str) -> None:
        """Remove a file: quick, and from now on it is not found; an upload of it that is on its way goes on."""

    def set_aside(self, digest: str) -> bool:  # noqa: ARG002 a service keeps sums of its own
        """Take a damaged file out of the store and keep it for a look; returns whether there was one."""
        return False

    def close(self) -> None:  # noqa: B027 a folder has nothing to let go of
        """Let go of what the store holds."""

    def read(self, digest: str) -> bytes:
        """Return the content of a small file."""
        return b"".join(self.pieces(digest))

    def has(self, digest: str) -> bool:
        """Whether the whole file is here."""
        return self.find(digest) is not None

    def size(self, digest: str) -> int:
        """Return the length of a file in bytes."""
        size_bytes = self.find(digest)
        if size_bytes is None:
            raise not_here(digest)
        return size_bytes

    def partial_size(self, digest: str, scope: str = "") -> int:
        """Return how many bytes an unfinished upload left; 0 if there is none. For `scope` see `append`."""
        try:
            return self._part(digest, scope).stat().st_size
        except FileNotFoundError:
            return 0

    def announce(self, digest: str, size_bytes: int, scope: str, check: Callable[[int], None]) -> None:
        """Count an upload with its whole length from now on, before its first byte, if that is allowed.

        Args:
            check: Told how many bytes all other unfinished uploads of the scope have or announced; may raise. Uploads
                that begin together are checked one after the other.
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
        """Go on with an upload, or start one.

        Args:
            offset: Where the first byte belongs; must be `partial_size(digest, scope)`.

        Returns:
            A context manager; it keeps what was written when it is left, whatever happens.

        Raises:
            OffsetConflict: If the offset is not where the upload stands; carries where it stands.
            ConflictError: If somebody else is writing the same file.
            TooLargeError: If more bytes are here than the file is said to have.
            NoRoomError: If the disk has no room for the rest.
        """
        if offset < 0 or total < offset:
            raise ArtifactError(f"An upload cannot start at byte {offset} of {total}.")
        part = self._part(digest, scope)
        lock = FileLock(part.with_suffix(".lock"), thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ConflictError(
                f"The file {digest[:12]}… is being uploaded by somebody else.", hint="Try again in a moment."
            ) from None
        try:
            return self._open(digest, part, lock, offset, total, scope)
        except BaseException:
            let_go(lock, part)
            raise

    def _open(self, digest: str, part: Path, lock: FileLock, offset: int, total: int, scope: str) -> Upload:
        have = part.stat().st_size if part.exists() else 0
        if have > total:
            # It was announced with another length; the digest decides, and this start may be the right one.
            part.unlink()
            have = 0
        if offset != have:
            raise OffsetConflict(f"The upload of {digest[:12]}… goes on at byte {have}, not {offset}.", cursor=have)
        # What is here of it does not count yet, so that the whole must fit.
        self.within_limit(total)
        self.expect(total - have)
        # Until it is over nobody else is promised the same room.
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
        """Keep a file as `keep` does; from now on its row counts, and no announcement of it."""
        self.keep(part, digest)
        with self._promising:
            self._announced.pop((scope, digest), None)

    def _promise(self, size_bytes: int) -> None:
        with self._promising:
            self._promised += size_bytes

    def expect(self, size_bytes: int) -> None:
        """Look whether there is room for what is to be written.

        Raises:
            NoRoomError: If there is not, or the server's limit forbids it.
        """
        self.within_limit(size_bytes)
        free = disk_free(self.root)
        if size_bytes > free:
            raise NoRoomError(
                f"The disk at {self.root} has {free:,} bytes free; the file needs {size_bytes:,} more.",
                hint="Free some space or remove old artifacts.",
            )

    def within_limit(self, size_bytes: int) -> None:
        """Look whether the server's limit lets so much more be kept.

        Raises:
            NoRoomError: If it does not.
        """
        if self.limit_bytes is not None and self.used_bytes + self._promised + size_bytes > self.limit_bytes:
            raise NoRoomError(
                f"The server keeps {self.used_bytes:,} of {self.limit_bytes:,} bytes; the file needs {size_bytes:,}.",
                hint="Make room (`tunefleet prune`, `tunefleet data rm`), or raise TUNEFLEET_STORAGE_LIMIT_BYTES.",
            )

    def sweep_partials(self, older_than_s: float) -> int:
        """Remove what uploads left that nobody has gone on with."""
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
                let_go(lock, part)
        return freed

    def _part(self, digest: str, scope: str) -> Path:
        return self.uploads / f"{checked(digest)}{_suffix(scope)}.part"


def _lapsed(announced_s: float, here: tuple[int, float] | None) -> bool:
    """Whether an announcement counts no more: the upload never came, or nobody goes on with it.

    Args:
        here: Bytes of it that are here, and how many seconds ago the last of them came; null if there are none.
    """
    return announced_s > _ANNOUNCED_S if here is None else min(announced_s, here[1]) > _ASLEEP_S


def _suffix(scope: str) -> str:
    return f"-{hashlib.sha256(scope.encode()).hexdigest()[:16]}" if scope else ""


def checked(digest: str) -> str:
    """Return a digest.

    Raises:
        ArtifactError: If it is none: nothing else may become part of a name.
    """
    if not is_digest(digest):
        raise ArtifactError(f"{digest[:80]!r} is not a sha256 digest.")
    return digest


def not_here(digest: str) -> NotFoundError:
    """Return the error for a file that a store does not have."""
    return NotFoundError(f"There is no file with the digest {digest}.")
