"""Files of updates and versions: out of the store to a local path, from there into the store, and away.

All of it may block, but for what is done with rows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tunefleet.artifacts import BlobStore, begin_writing, hash_file, replacing
from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts
from tunefleet.errors import MachineError
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.storage import capacity
from tunefleet.orchestrator.storage.file_deletion import delete_files
from tunefleet.schemas.api import FileEntry

_FOLDER: Final = "federation"


def root(core: Core) -> Path:
    """Return the folder of all who work."""
    return core.settings.data_dir / _FOLDER


def work_folder(core: Core, holder: str) -> Path:
    """Return where whoever holds a round keeps what it works with; nobody else uses it, and it is removed after."""
    return root(core) / holder


def leftovers(core: Core, holders: set[str]) -> list[Path]:
    """Return the folders of those who were killed at work."""
    folders = root(core).iterdir() if root(core).is_dir() else ()
    return [folder for folder in folders if folder.name not in holders]


def local(blobs: BlobStore, digest: str, folder: Path) -> Path:
    """Return a path at which a file of the store can be read; it must not be changed.

    Raises:
        NotFoundError: If the store does not have it.
        MachineError: If what the store has under the digest is something else.
        UnreachableError: If the store does not answer.
    """
    source = blobs.source(digest, digest)
    if isinstance(source, Path):
        return source
    path = folder / digest
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = hashlib.sha256()
        with replacing(path) as part:
            with part.open("wb") as file:
                for piece in blobs.pieces(digest):
                    found.update(piece)
                    file.write(piece)
            if found.hexdigest() != digest:
                raise MachineError(
                    f"The artifact store has something else under {digest[:12]}…: it was damaged or replaced there.",
                    hint="Restore the object from a backup of the bucket, or remove what it belongs to.",
                )
    return path


def keep(blobs: BlobStore, path: Path, name: str) -> FileEntry:
    """Move a file into the store; it is synced before, and gone from its path afterwards.

    One that is there already, as the config of most versions is, is not written again.

    Raises:
        UnreachableError: If the store does not answer.
    """
    with path.open("rb") as file:
        begin_writing(file.fileno())  # the disk works while the processor hashes
        digest, size_bytes = hash_file(path)
        entry = FileEntry(path=name, digest=digest, size_bytes=size_bytes)
        if blobs.has(digest):
            path.unlink()
            return entry
        os.fsync(file.fileno())
    blobs.keep(path, digest)
    return entry


def drop(connection: Connection, blobs: BlobStore, digests: Sequence[str], now: float) -> None:
    """Remove those files that nothing refers to and nobody holds, once the operation is committed.

    A round with many workers leaves gigabytes behind: they do not wait for the collection of garbage.
    """
    free = artifacts.unreferenced(connection, sorted(set(digests)), now=now)
    capacity.free(connection, blobs, free)
    artifacts.delete_blobs(connection, free, now=now)
    delete_files(connection, blobs, free)
