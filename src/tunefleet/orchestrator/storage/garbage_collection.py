"""Garbage collection: delete files without references or pins, and abort abandoned uploads.

Rows are deleted in one operation and files right after its commit, in the writer thread: a later query reports the file
as missing, and an earlier one holds a pin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection, after_commit
from tunefleet.db.access import keys
from tunefleet.db.engine.writer import later
from tunefleet.db.repositories import artifacts
from tunefleet.db.repositories.artifacts import ArrivingRow
from tunefleet.errors import (
    MachineError,
)
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ha import storage_marker
from tunefleet.orchestrator.storage import capacity

log = logging.getLogger(__name__)
# Retention of unfinished uploads, so that they can be resumed.
PARTIAL_S: Final = 24 * 3600.0
# Files per operation: no server can write while it runs.
_BATCH: Final = 16


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
    return Collected(len(sizes), sum(sizes.values()), await _collect_abandoned(core, PARTIAL_S))


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


async def abort_upload(core: ServerContext, row: ArrivingRow) -> None:
    """Abort an upload.

    Raises:
        UnreachableError: If the store cannot be reached.
        MachineError: If it refuses.
    """
    # The row is deleted last, so that an upload that the store fails to abort is retried.
    if core.blobs.direct is not None:
        await asyncio.to_thread(core.blobs.direct.discard, row.name, row.ref)
    await core.write(lambda connection: artifacts.delete_arriving(connection, row.name))


async def _collect_abandoned(core: ServerContext, unknown_s: float) -> int:
    """Abort uploads without progress during the grace period, and unknown uploads in the store."""
    direct, now = core.blobs.direct, core.clock.wall()
    if direct is None:
        return 0
    before = now - core.settings.garbage_grace_s
    abandoned = await core.read(lambda connection: artifacts.arriving_given_up(connection, before))
    abandoned = [row for row in abandoned if row.name not in core.state(DirectUploadState).verifying]
    for row in abandoned:
        await abort_upload(core, row)
    # Read after the rows above; an upload that starts after this is too young for `sweep`.
    known_names = await core.read(artifacts.arriving_names)
    try:
        unknown = await asyncio.to_thread(direct.sweep, now - unknown_s, known_names)
    except MachineError as error:
        log.warning("Cannot remove unknown uploads from the object store: %s", error.detail or error)
        unknown = 0
    if abandoned or unknown:
        log.info("Aborted %d abandoned uploads to the object store.", len(abandoned) + unknown)
    return len(abandoned) + unknown


@dataclass(slots=True)
class DirectUploadState:
    """The direct uploads of this server.

    Args:
        verifying: Names of the uploads that this server is verifying.
        again_at: Until then, on the monotonic clock, direct uploads are off, because the object store refused one.
    """

    verifying: set[str] = field(default_factory=set)
    again_at: float = 0.0
