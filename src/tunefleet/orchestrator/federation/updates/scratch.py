"""A place for one upload while it is looked at: a folder of its own that is gone afterwards."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from tunefleet.artifacts import BlobStore
from tunefleet.errors import MachineError, TooLargeError

# Age of what a killed server left.
_GIVEN_UP_S: Final = 24 * 3600.0


class Scratch:
    """A folder on the disk of the store's files, for one upload; it is made when something is to lie there."""

    def __init__(self, blobs: BlobStore) -> None:
        self._root = blobs.root / "landing"
        self.folder = self._root / secrets.token_hex(8)
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def make(self) -> Path:
        """Make the folder, if it was not made yet, and return where it is."""
        if not self.folder.exists():
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sweep(self._root)
            self.folder.mkdir(mode=0o700)
        return self.folder

    def close(self) -> None:
        """Let go of everything that was not moved away."""
        if self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)


class Landing(Scratch):
    """A folder with a file that is written as it arrives."""

    def __init__(self, blobs: BlobStore, max_bytes: int) -> None:
        super().__init__(blobs)
        self.file = self.make() / "adapter.tar.gz"
        self._max_bytes = max_bytes
        self._hash = hashlib.sha256()
        self._out: IO[bytes] = self.file.open("xb", buffering=0)

    @property
    def digest(self) -> str:
        """The sha256 of what has arrived."""
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes.

        Raises:
            TooLargeError: If they go beyond the limit.
            MachineError: If the disk is full.
        """
        rest = memoryview(data)
        self.size_bytes += len(rest)
        if self.size_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        self._hash.update(rest)
        try:
            while rest:
                rest = rest[self._out.write(rest) or 0 :]
        except OSError as error:
            raise MachineError(
                f"The disk at {self.folder.parent} cannot take the upload: {error.strerror}.",
                hint="Free some space on the server; `tunefleet prune` removes what ended long ago.",
            ) from error

    def close(self) -> None:
        """Let go of everything that was not moved away."""
        self._out.close()
        super().close()


def too_large(max_bytes: int) -> TooLargeError:
    """Return the error for an upload that is longer than its federation takes."""
    return TooLargeError(
        f"The update has more than the {max_bytes:,} bytes that its federation takes.",
        hint="Create the federation with a larger `max_update_bytes`, or upload with `upload_dtype` bf16 or int8.",
    )


def keep(blobs: BlobStore, file: Path, digest: str) -> None:
    """Move a file whose digest is known into the store, durably; one that is there already is left as it is."""
    if blobs.has(digest):
        return
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
    blobs.keep(file, digest)


def _sweep(root: Path) -> None:
    limit = time.time() - _GIVEN_UP_S
    for folder in root.iterdir():
        try:
            if folder.stat().st_mtime < limit:
                shutil.rmtree(folder)
        except FileNotFoundError:
            continue  # another upload swept it
