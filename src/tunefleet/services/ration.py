"""How much the files of a server take together, and the limit that its settings put on it.

Uploads count as soon as they are recorded; what the server makes itself counts with the next collection of garbage.
Several uploads at once may go beyond the limit by what was on its way.
"""

from __future__ import annotations

import logging
from typing import Final

from tunefleet.artifacts import BlobStore
from tunefleet.store import Connection, artifacts

log = logging.getLogger(__name__)
WARN_AT: Final = 0.9
"""From this share of the limit on, the server warns."""


def count(connection: Connection, blobs: BlobStore) -> None:
    """Count all files anew, and warn if the limit is near."""
    if blobs.limit_bytes is not None:
        before, blobs.used_bytes = blobs.used_bytes, artifacts.stored_bytes(connection)
        _warn(blobs, before)


def add(connection: Connection, blobs: BlobStore, digest: str, size_bytes: int) -> None:
    """Count a file that is about to be recorded, if no project has it yet; warn if the limit is near."""
    if blobs.limit_bytes is not None and not artifacts.known_anywhere(connection, [digest]):
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
