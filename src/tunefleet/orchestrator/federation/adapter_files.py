"""Files of updates and versions: fetch them from the blob store, store them, delete them.

Functions without a `connection` block on I/O: call them in a thread.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from tunefleet.artifacts import BlobStore, begin_writing, hash_file, replacing
from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts
from tunefleet.errors import MachineError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.storage import capacity
from tunefleet.orchestrator.storage.blob_stores import federation_folder
from tunefleet.orchestrator.storage.garbage_collection import delete_files
from tunefleet.schemas.api import FileEntry


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
        UnreachableError: If the store does not answer.
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
        UnreachableError: If the store does not answer.
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
