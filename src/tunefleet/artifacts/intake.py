"""A file whose digest is not known before it is here: hashed as it is written, then put where its digest says."""

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
    """One file on its way into a store; what is not finished is thrown away.

    Args:
        check: Told how many bytes it has so far, before they are written; may raise.
    """

    def __init__(self, store: BlobStore, check: Callable[[int], None] = lambda _: None) -> None:
        self._store = store
        self._check = check
        # The sweep of given-up uploads finds it, should this process be killed.
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
            MachineError: If the disk is full, or the server keeps as much as it may.
        """
        rest = memoryview(data)
        self._check(self.size_bytes + len(rest))
        self._store.within_limit(self.size_bytes + len(rest))
        self._hash.update(rest)
        self.size_bytes += len(rest)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            raise MachineError(
                f"The disk at {self._part.parent} cannot take the file: {error.strerror}.",
                hint="Free some space or remove old artifacts.",
            ) from error

    @property
    def digest(self) -> str:
        """What has been written so far has it."""
        return self._hash.hexdigest()

    def finish(self, scope: str = "") -> str:
        """Put the file in its place, synced, and return its digest; for `scope` see `BlobStore.announce`."""
        os.fsync(self._file.fileno())
        self._store.keep_announced(self._part, self.digest, scope)
        return self.digest

    def close(self) -> None:
        """Let go; what was not finished is deleted."""
        self._file.close()
        self._part.unlink(missing_ok=True)
        if self._lock.is_locked:
            self._part.with_suffix(".lock").unlink(missing_ok=True)
            self._lock.release()
