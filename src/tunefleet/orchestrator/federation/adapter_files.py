"""Files of updates and versions: fetch, store and delete them; the `.tar.gz` of a version, built on first request.

Functions without a `connection` block on I/O: call them in a thread.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, cast
from weakref import WeakValueDictionary

import orjson

from tunefleet.artifacts import BlobStore, Intake, begin_writing, hash_file, replacing
from tunefleet.db import Connection
from tunefleet.db.federations import federation_versions, federations
from tunefleet.db.federations.federation_versions import VersionRow, holder
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import artifacts
from tunefleet.errors import MachineError, NotFoundError, StoreError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation.status import FOREVER
from tunefleet.orchestrator.storage import capacity
from tunefleet.orchestrator.storage.blob_stores import federation_folder
from tunefleet.orchestrator.storage.garbage_collection import delete_files
from tunefleet.schemas.api import FileEntry

ARCHIVE: Final = "adapter.tar.gz"
_BLOCK: Final = 1 << 20
# gzip level 0: weights hardly compress, and compressing them would take longer than averaging them.
_NO_COMPRESSION: Final = 0


def work_folder(core: ServerContext, holder: str) -> Path:
    """Return the work folder of a round's lease holder; only that holder uses it, and removes it afterwards."""
    return federation_folder(core) / holder


def orphaned_folders(core: ServerContext, holders: set[str]) -> list[Path]:
    """Return the work folders of holders that no longer have a lease: their servers were killed."""
    folders = federation_folder(core).iterdir() if federation_folder(core).is_dir() else ()
    return [folder for folder in folders if folder.name not in holders]


def local(blobs: BlobStore, digest: str, folder: Path) -> Path:
    """Return a local path of a stored file; the file must not be changed.

    Raises:
        NotFoundError: If the store does not have the file.
        MachineError: If the stored content does not match the digest.
        UnreachableError: If the store does not respond.
    """
    source = blobs.source(digest, digest)
    if isinstance(source, Path):
        return source
    path = folder / digest
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A file from a remote bucket is verified as it is downloaded: averaging a damaged one would spoil the version.
        content_hash = hashlib.sha256()
        with replacing(path) as part:
            with part.open("wb") as file:
                for piece in blobs.pieces(digest):
                    content_hash.update(piece)
                    file.write(piece)
            if content_hash.hexdigest() != digest:
                raise MachineError(
                    f"The file {digest[:12]}… in the artifact store does not match its digest (damaged or replaced).",
                    hint="Restore the object from a backup of the bucket, or remove the version that it belongs to.",
                )
    return path


def keep(blobs: BlobStore, path: Path, name: str) -> FileEntry:
    """Move a file into the store; it is fsynced first, and no longer at its path afterwards.

    Raises:
        UnreachableError: If the store does not respond.
    """
    with path.open("rb") as file:
        begin_writing(file.fileno())  # write-back to disk overlaps with hashing
        digest, size_bytes = hash_file(path)
        entry = FileEntry(path=name, digest=digest, size_bytes=size_bytes)
        # Most versions share their config, which is stored once.
        if blobs.has(digest):
            path.unlink()
            return entry
        os.fsync(file.fileno())
    blobs.keep(path, digest)
    return entry


def drop(connection: Connection, blobs: BlobStore, digests: Sequence[str], now: float) -> None:
    """Delete those of the files that are neither referenced nor pinned, once the transaction is committed."""
    # A round with many workers leaves gigabytes of updates, too much to keep until the next garbage collection.
    unreferenced = artifacts.unreferenced(connection, sorted(set(digests)), now=now)
    capacity.free(connection, blobs, unreferenced)
    artifacts.delete_blobs(connection, unreferenced, now=now)
    delete_files(connection, blobs, unreferenced)


@dataclass(slots=True)
class _ArchiveLocks:
    """Locks against building the archive of a version twice, by federation and version number."""

    locks: WeakValueDictionary[tuple[int, int], asyncio.Lock] = field(default_factory=WeakValueDictionary)


async def with_archive(core: ServerContext, row: VersionRow) -> tuple[VersionRow, FileEntry]:
    """Return a version with its archive, which is built on the first request."""
    # Concurrent requests on this server wait for one build. Two servers may both build it: the result is identical.
    found = archive_of(row)
    if found is not None:
        return row, found
    async with core.state(_ArchiveLocks).locks.setdefault((row.federation_seq, row.version), asyncio.Lock()):
        row = await core.read(partial(_reload, row=row))
        if (found := archive_of(row)) is None:
            entries = [FileEntry(path=path, digest=d, size_bytes=size) for path, d, size in orjson.loads(row.files)]
            made = await asyncio.to_thread(archived, core.blobs, entries)
            return await core.write(partial(_record, core=core, row=row, made=made))
    return row, found


def archive_of(row: VersionRow) -> FileEntry | None:
    """Return the archive of a version; None if it was not built yet."""
    if row.archive_digest is None or row.archive_size_bytes is None:
        return None
    return FileEntry(path=ARCHIVE, digest=row.archive_digest, size_bytes=row.archive_size_bytes)


def _reload(connection: Connection, row: VersionRow) -> VersionRow:
    found = federation_versions.get(connection, row.federation_seq, row.version)
    if found is None:
        raise NotFoundError(f"Version {row.version} was removed.")
    return found


def _record(
    connection: Connection, *, core: ServerContext, row: VersionRow, made: FileEntry
) -> tuple[VersionRow, FileEntry]:
    federation = federations.by_seq(connection, row.federation_seq, lock=True)
    row = _reload(connection, row)
    found = archive_of(row)
    if federation is None or found is not None:
        return row, found or made
    keep_archive(connection, core.blobs, federation, made, core.clock.wall())
    artifacts.pin(connection, [made.digest], holder=holder(federation.id, row.version), until=FOREVER)
    return federation_versions.set_archive(connection, row, made.digest, made.size_bytes), made


def keep_archive(
    connection: Connection, blobs: BlobStore, federation: FederationRow, made: FileEntry, now: float
) -> None:
    """Record the file of an archive; the caller pins it."""
    # Files are deleted in the writer thread only, which runs this: none can vanish between this check and the commit.
    if not blobs.has(made.digest):
        raise StoreError(f"An archive of {federation.id} was garbage collected; it will be built again.", hint="Retry.")
    size_bytes = made.size_bytes
    capacity.add(connection, blobs, made.digest, size_bytes)
    artifacts.add_blob(connection, project=federation.project, digest=made.digest, size_bytes=size_bytes, at=now)


def archived(blobs: BlobStore, entries: Sequence[FileEntry]) -> FileEntry:
    """Pack stored files into one `.tar.gz`, at its root; the output is deterministic."""
    with Intake(blobs) as intake:
        with (
            gzip.GzipFile("", "wb", _NO_COMPRESSION, cast("IO[bytes]", intake), mtime=0) as packed,
            tarfile.TarFile(fileobj=packed, mode="w", copybufsize=_BLOCK, format=tarfile.PAX_FORMAT) as tar,
        ):
            for file in sorted(entries, key=lambda each: each.path):
                info = tarfile.TarInfo(file.path)
                info.size, info.mode = file.size_bytes, 0o644
                # Streamed piece by piece: a version may be larger than the memory.
                with io.BufferedReader(_Pieces(blobs.pieces(file.digest)), _BLOCK) as content:
                    tar.addfile(info, content)
        return FileEntry(path=ARCHIVE, digest=intake.finish(), size_bytes=intake.size_bytes)


class _Pieces(io.RawIOBase):
    """A readable file over an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
