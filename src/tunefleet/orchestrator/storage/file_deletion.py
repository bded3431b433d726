"""Delete files whose rows are deleted, except those that were recorded again meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection, after_commit
from tunefleet.db.engine.writer import later
from tunefleet.db.repositories import artifacts

# Files per operation: no server can write while it runs.
_BATCH: Final = 16


def delete_files(connection: Connection, blobs: BlobStore, digests: Sequence[str]) -> None:
    """Delete files after the commit of the current operation, which deletes their rows."""
    if not digests:
        return
    # A single server deletes them in its writer thread right after the commit, before any other operation.
    if not blobs.others_write:
        after_commit(connection, partial(_delete, blobs, digests))
        return
    # With several servers, another one may record a file between the commit and the deletion, because it still exists.
    # So each batch is a further operation that deletes only files without a row. After a crash in between, garbage
    # collection finds the files.
    for start in range(0, len(digests), _BATCH):
        later(connection, partial(_delete_unrecorded, blobs=blobs, digests=digests[start : start + _BATCH]))


def _delete_unrecorded(connection: Connection, *, blobs: BlobStore, digests: Sequence[str]) -> None:
    known = artifacts.known_anywhere(connection, list(digests))
    _delete(blobs, [digest for digest in digests if digest not in known])


def _delete(blobs: BlobStore, digests: Sequence[str]) -> None:
    for digest in digests:
        blobs.delete(digest)
