"""Garbage collection: delete files without references or pins.

Rows are deleted in one operation and files right after its commit, in the writer thread: a later query reports the file
as missing, and an earlier one holds a pin.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Final

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection, after_commit
from tunefleet.db.access import keys
from tunefleet.db.repositories import artifacts
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ha import storage_marker
from tunefleet.orchestrator.storage import abandoned_uploads, capacity
from tunefleet.orchestrator.storage.file_deletion import delete_files

log = logging.getLogger(__name__)
# Retention of unfinished uploads, so that they can be resumed.
PARTIAL_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Collected:
    """Number and size of the deleted files, and number of aborted uploads."""

    files: int
    size_bytes: int
    uploads: int = 0


async def collect(core: ServerContext) -> Collected:
    """Delete unreferenced files and abandoned uploads."""
    now = core.clock.wall()
    before = now - core.settings.garbage_grace_s
    old = await asyncio.to_thread(core.blobs.kept_before, before)
    since = await core.read(keys.files_kept_until)
    if since:
        earlier = await asyncio.to_thread(core.blobs.kept_before, since)
        old = {digest: size for digest, size in old.items() if digest not in earlier}
    # In a reader: with a million files it takes seconds and would block all writes. The writer checks the rest again.
    recorded = await core.read(lambda connection: artifacts.known_anywhere(connection, list(old)))
    old = {digest: size for digest, size in old.items() if digest not in recorded}
    sizes = await core.write(partial(_collect, blobs=core.blobs, old=old, now=now, before=before))
    await asyncio.to_thread(core.blobs.sweep_partials, PARTIAL_S)
    return Collected(len(sizes), sum(sizes.values()), await abandoned_uploads.collect(core, PARTIAL_S))


def unknown_files(blobs: BlobStore, connection: Connection) -> dict[str, int]:
    """Return digest and size in bytes of files without a row that are older than the last start of a server."""
    old = blobs.kept_before(keys.files_kept_until(connection))
    known = artifacts.known_anywhere(connection, list(old)) | {storage_marker.digest_of(connection)}
    return {digest: size for digest, size in old.items() if digest not in known}


def _collect(
    connection: Connection, *, blobs: BlobStore, old: dict[str, int], now: float, before: float
) -> dict[str, int]:
    found = dict(artifacts.garbage(connection, now=now, verified_before=before))
    # A crash between writing a file and its row leaves a file without a row.
    recorded = artifacts.known_anywhere(connection, list(old))
    kept = recorded | {storage_marker.digest_of(connection)}
    found |= {digest: size for digest, size in old.items() if digest not in kept}
    artifacts.delete_blobs(connection, list(found), now=now)
    capacity.count(connection, blobs)
    if found:
        delete_files(connection, blobs, list(found))
        after_commit(connection, partial(log.info, "Deleted %d unreferenced files.", len(found)))
    return found
