"""Small, careful acts on files: hash, write so that a power cut leaves the old or the new, free space."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 1 << 20

Progress = Callable[[int], None]
"""Called with the number of bytes that were just done."""


def hash_file(path: Path, *, progress: Progress | None = None) -> tuple[str, int]:
    """Hash a file.

    Args:
        path: The file.
        progress: Called after each chunk.

    Returns:
        Hex sha256, and the number of bytes that were hashed.

    Raises:
        OSError: If it cannot be read.
    """
    digest = hashlib.sha256()
    size_bytes = 0
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            size_bytes += count
            if progress is not None:
                progress(count)
    return digest.hexdigest(), size_bytes


def fsync_dir(path: Path) -> None:
    """Make a rename or a new name in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(source: Path, target: Path) -> None:
    """Move a synced file over another name on the same file system, durably."""
    source.replace(target)
    fsync_dir(target.parent)


def disk_free(path: Path) -> int:
    """Return the bytes that are free where a path is, or would be.

    Args:
        path: A path; if it does not exist yet, the nearest folder above it counts.
    """
    here = path.absolute()
    while not here.exists():
        here = here.parent
    return shutil.disk_usage(here).free
