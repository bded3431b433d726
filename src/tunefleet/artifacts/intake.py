"""Writes a file whose digest is not known in advance: hashed while it is written, then stored under its digest."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import IO

from filelock import FileLock

from tunefleet.artifacts.blobs import BlobStore
from tunefleet.errors import MachineError


class Intake:
    """A file that is being received; deleted unless it is finished.

    Args:
        check: Called with the size so far, before bytes are written; may raise.
    """

    def __init__(self, store: BlobStore, check: Callable[[int], None] = lambda _: None) -> None:
        self._store = store
        self._check = check
        # Named like an upload, so that the sweep of abandoned uploads finds it if this process is killed.
        self._part = store.uploads / f"intake-{secrets.token_hex(8)}.part"
        self._lock = FileLock(self._part.with_suffix(".lock"), thread_local=False)
        self._lock.acquire(timeout=0)
        self._file: IO[bytes] = self._part.open("xb", buffering=0)
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def __enter__(self) -> Intake:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes.

        Raises:
            MachineError: If the disk is full, or the server's storage limit is exceeded.
        """
        rest = memoryview(data)
        self._check(self.size_bytes + len(rest))
        self._store.within_limit(self.size_bytes + len(rest))
        self._hash.update(rest)
        self.size_bytes += len(rest)
        try:
            while rest:
                # The file is unbuffered: a write may accept only a part of the data.
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            raise MachineError(
                f"Cannot write the file to {self._part.parent}: {error.strerror}.",
                hint="Free some space or delete old artifacts.",
            ) from error

    @property
    def digest(self) -> str:
        """Digest of the bytes written so far."""
        return self._hash.hexdigest()

    def finish(self, scope: str = "") -> str:
        """Sync and store the file, and return its digest; for `scope` see `BlobStore.announce`."""
        os.fsync(self._file.fileno())
        self._store.keep_announced(self._part, self.digest, scope)
        return self.digest

    def close(self) -> None:
        """Close the file; deletes it unless it is finished."""
        self._file.close()
        self._part.unlink(missing_ok=True)
        if self._lock.is_locked:
            self._part.with_suffix(".lock").unlink(missing_ok=True)
            self._lock.release()
