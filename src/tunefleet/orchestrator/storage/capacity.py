"""Total size of a server's files, and its configured limit.

Uploads and files of federations count as soon as they are recorded, updates until their round has ended; everything
else that is written or removed counts with the next garbage collection. Uploads in progress reserve their size, so that
concurrent ones stay within the limit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection, after_commit
from tunefleet.db.repositories import artifacts

log = logging.getLogger(__name__)
# Share of the limit from which on the server logs a warning.
WARN_AT: Final = 0.9


def count(connection: Connection, blobs: BlobStore) -> None:
    """Recount all files; warn if the limit is near."""
    if blobs.limit_bytes is not None:
        before, blobs.used_bytes = blobs.used_bytes, artifacts.stored_bytes(connection)
        _warn(blobs, before)


def add(connection: Connection, blobs: BlobStore, digest: str, size_bytes: int) -> None:
    """Count a file that is being recorded, if no project has it yet; warn if the limit is near."""
    # After the commit: an operation may be rolled back, or run twice.
    if blobs.limit_bytes is not None and not artifacts.known_anywhere(connection, [digest]):
        after_commit(connection, partial(_grow, blobs, size_bytes))


def refuse(connection: Connection, blobs: BlobStore, sizes: Mapping[str, int]) -> None:
    """Raise NoRoomError for files over the limit; files that any project already has do not count."""
    if blobs.limit_bytes is not None and sizes:
        known = artifacts.known_anywhere(connection, list(sizes))
        blobs.within_limit(sum(size for digest, size in sizes.items() if digest not in known))


def free(connection: Connection, blobs: BlobStore, digests: Sequence[str]) -> None:
    """Subtract files whose rows are being deleted."""
    if blobs.limit_bytes is not None and digests:
        after_commit(connection, partial(_grow, blobs, -artifacts.stored_bytes(connection, digests)))


def _grow(blobs: BlobStore, size_bytes: int) -> None:
    before, blobs.used_bytes = blobs.used_bytes, blobs.used_bytes + size_bytes
    _warn(blobs, before)


def _warn(blobs: BlobStore, before: int) -> None:
    limit = blobs.limit_bytes or 0
    if before < WARN_AT * limit <= blobs.used_bytes:
        log.warning(
            "Files use %d of the %d bytes allowed by TUNEFLEET_STORAGE_LIMIT_BYTES; uploads over it are refused.",
            blobs.used_bytes,
            limit,
        )
