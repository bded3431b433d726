"""How much the files of a server take together, and the limit that its settings put on it.

Uploads and the files of federations count as soon as they are recorded, and updates no longer once their round is
over; what else the server makes or removes counts with the next collection of garbage.
What is on its way has its room promised, so that several uploads at once stay within the limit.
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
WARN_AT: Final = 0.9
"""From this share of the limit on, the server warns."""


def count(connection: Connection, blobs: BlobStore) -> None:
    """Count all files anew, and warn if the limit is near."""
    if blobs.limit_bytes is not None:
        before, blobs.used_bytes = blobs.used_bytes, artifacts.stored_bytes(connection)
        _warn(blobs, before)


def add(connection: Connection, blobs: BlobStore, digest: str, size_bytes: int) -> None:
    """Count a file that is about to be recorded, if no project has it yet; warn if the limit is near.

    Once it is committed: an operation may run twice, or be undone.
    """
    if blobs.limit_bytes is not None and not artifacts.known_anywhere(connection, [digest]):
        after_commit(connection, partial(_grow, blobs, size_bytes))


def refuse(connection: Connection, blobs: BlobStore, sizes: Mapping[str, int]) -> None:
    """Refuse files that would go beyond the limit; those that any project has take nothing."""
    if blobs.limit_bytes is not None and sizes:
        known = artifacts.known_anywhere(connection, list(sizes))
        blobs.within_limit(sum(size for digest, size in sizes.items() if digest not in known))


def free(connection: Connection, blobs: BlobStore, digests: Sequence[str]) -> None:
    """Count files no longer whose rows are about to go."""
    if blobs.limit_bytes is not None and digests:
        after_commit(connection, partial(_grow, blobs, -artifacts.stored_bytes(connection, digests)))


def _grow(blobs: BlobStore, size_bytes: int) -> None:
    before, blobs.used_bytes = blobs.used_bytes, blobs.used_bytes + size_bytes
    _warn(blobs, before)


def _warn(blobs: BlobStore, before: int) -> None:
    limit = blobs.limit_bytes or 0
    if before < WARN_AT * limit <= blobs.used_bytes:
        log.warning(
            "Files take %d of the %d bytes that TUNEFLEET_STORAGE_LIMIT_BYTES allows; beyond it uploads are refused.",
            blobs.used_bytes,
            limit,
        )
