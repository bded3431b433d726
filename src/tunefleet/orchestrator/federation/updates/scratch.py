"""Scratch folders: one for each upload while it is processed, removed afterwards."""

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

# Folders of this age were left by a killed server.
_GIVEN_UP_S: Final = 24 * 3600.0


class Scratch:
    """A folder for one upload, created on first use on the blob store's disk."""

    def __init__(self, blobs: BlobStore) -> None:
        # On the same disk as the blobs, so that a file moves into the store by rename.
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
        """Create the folder if necessary, and return its path."""
        if not self.folder.exists():
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sweep(self._root)
            self.folder.mkdir(mode=0o700)
        return self.folder

    def close(self) -> None:
        """Delete everything that was not moved into the store."""
        if self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)


class UploadFile(Scratch):
    """A scratch folder with a file that is written as it is received."""

    def __init__(self, blobs: BlobStore, max_bytes: int) -> None:
        super().__init__(blobs)
        self.file = self.make() / "adapter.tar.gz"
        self._max_bytes = max_bytes
        self._hash = hashlib.sha256()
        self._out: IO[bytes] = self.file.open("xb", buffering=0)

    @property
    def digest(self) -> str:
        """The sha256 of the bytes received so far."""
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes.

        Raises:
            TooLargeError: If the file exceeds the limit.
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
                f"Cannot write the upload to {self.folder.parent}: {error.strerror}.",
                hint="Free disk space on the server; `tunefleet prune` removes old runs.",
            ) from error

    def close(self) -> None:
        """Delete everything that was not moved into the store."""
        self._out.close()
        super().close()


def too_large(max_bytes: int) -> TooLargeError:
    """Return the error for an upload that exceeds its federation's limit."""
    return TooLargeError(
        f"The update exceeds its federation's limit of {max_bytes:,} bytes.",
        hint="Create the federation with a larger `max_update_bytes`, or upload with `upload_dtype` bf16 or int8.",
    )


def keep(blobs: BlobStore, file: Path, digest: str) -> None:
    """Fsync a file and move it into the store under a known digest, unless it is stored already."""
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
