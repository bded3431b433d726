"""Delete files whose rows go: never one that somebody has recorded meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection, after_commit
from tunefleet.db.engine.writer import later
from tunefleet.db.repositories import artifacts

# Files of one further operation: while it runs no server writes.
_BATCH: Final = 16


def delete_files(connection: Connection, blobs: BlobStore, digests: Sequence[str]) -> None:
    """Delete files once the current operation, which removes their rows, is committed.

    One server deletes them in its writer's thread right after the commit, before anybody's next operation. Where
    others write to the same database, their next operation may come first, and record a file that they find still
    there; so each batch is deleted in an operation of its own, and only what no row knows by then. A server that ends
    before that leaves files that the next collection of garbage finds.
    """
    if not digests:
        return
    if not blobs.others_write:
        after_commit(connection, partial(_delete, blobs, digests))
        return
    for start in range(0, len(digests), _BATCH):
        later(connection, partial(_delete_unknown, blobs=blobs, digests=digests[start : start + _BATCH]))


def _delete_unknown(connection: Connection, *, blobs: BlobStore, digests: Sequence[str]) -> None:
    known = artifacts.known_anywhere(connection, list(digests))
    _delete(blobs, [digest for digest in digests if digest not in known])


def _delete(blobs: BlobStore, digests: Sequence[str]) -> None:
    for digest in digests:
        blobs.delete(digest)
