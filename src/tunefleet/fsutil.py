"""File helpers: hashing, atomic and durable writes, free space."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_DRAFT: Final = ".draft"

CHUNK_BYTES: Final = 1 << 20

# SYNC_FILE_RANGE_WRITE: start writing all dirty pages that are not being written yet, without waiting.
_WRITE_OUT: Final = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None

# Called with the number of bytes processed since the last call.
Progress = Callable[[int], None]


def hash_file(path: Path, *, progress: Progress | None = None) -> tuple[str, int]:
    """Hash a file.

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


def begin_writing(descriptor: int) -> None:
    """Start writing a file's dirty pages to disk, so that a later sync takes less time; Linux only."""
    if _sync_file_range is not None:
        # Only a hint, so the return value is ignored: the later fsync reports any error.
        _sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE_OUT)


def sync_path(path: Path) -> None:
    """Make a file's content, or the entries of a folder, durable."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """Write a file atomically and durably: after a crash or power failure it has the old or the new content.

    Args:
        path: Its folder is created if missing.
        content: Strings are written as UTF-8.
        mode: Permissions on creation, reduced by the umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own for each writer: two servers may write the same file of a shared folder at the same time.
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}{_DRAFT}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
            out.flush()
            os.fsync(out.fileno())  # before the rename: otherwise a power failure could leave an empty file
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync_path(path.parent)  # makes the rename itself durable


def remove_drafts(folder: Path) -> None:
    """Remove drafts left by killed processes in this folder; no other process may be writing there."""
    for draft in folder.glob(f".*{_DRAFT}"):
        draft.unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a small file that only this user can read, atomically and durably; its folder is created."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_synced(path, text)


def write_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Write a folder atomically; an existing one is replaced."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    for path in partial.rglob("*"):
        if path.is_file():
            sync_path(path)
    if target.exists():  # `rename` cannot replace a folder that is not empty
        shutil.rmtree(target)
    partial.rename(target)
    sync_path(target.parent)


def write_file(target: Path, content: bytes) -> None:
    """Write a file that others may read, atomically and durably."""
    write_synced(target, content, mode=0o666)


def replace_file(source: Path, target: Path) -> None:
    """Move a synced file to another name on the same file system, durably."""
    source.replace(target)
    sync_path(target.parent)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path for a file's new content, which replaces the file when the block succeeds.

    If the block fails, the temporary file is removed. Not synced: after a power failure the file may have the old
    content or be empty.
    """
    part = target.with_name(f".{target.name}.part")
    try:
        yield part
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def disk_free(path: Path) -> int:
    """Return the free bytes on the disk of a path, which need not exist."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free
