"""Small, careful acts on files: hash, write so that a power cut leaves the old or the new, free space."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_DRAFT: Final = ".draft"

CHUNK_BYTES: Final = 1 << 20

# SYNC_FILE_RANGE_WRITE: begin with all dirty pages that are not on their way yet, and do not wait.
_WRITE_OUT: Final = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None

# Called with the number of bytes that were just done.
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
    """Let the disk begin with what was written to a file, so that syncing it later waits less; on Linux only."""
    if _sync_file_range is not None:
        # A hint: what goes wrong with the file is what the sync reports.
        _sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE_OUT)


def sync_path(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power cut."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folder
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """Write a file so that after a crash or a power cut it is the old one or the new one, never a torn one.

    Args:
        path: Its folder is made if it is missing.
        content: Text is written as UTF-8.
        mode: Permissions from its first moment; the umask takes from them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}{_DRAFT}")
    # A draft that a killed process left may have other permissions.
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync_path(path.parent)


def remove_drafts(folder: Path) -> None:
    """Remove what a process left that was killed while it wrote a file in this folder; nobody else may be writing."""
    for draft in folder.glob(f".*{_DRAFT}"):
        draft.unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a small file that only this user can read, whole or not at all, durably; its folder is made."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_synced(path, text)


def write_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Write a folder whole or not at all; what was there before is replaced."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    for path in partial.rglob("*"):
        if path.is_file():
            sync_path(path)
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)
    sync_path(target.parent)


def write_file(target: Path, content: bytes) -> None:
    """Write a file that others may read, whole or not at all, durably."""
    write_synced(target, content, mode=0o666)


def replace_file(source: Path, target: Path) -> None:
    """Move a synced file over another name on the same file system, durably."""
    source.replace(target)
    sync_path(target.parent)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Give a place beside a file to write its new content to; the file has it when the block has ended well.

    What was begun does not stay where the block fails, as it does on a full disk. Not synced: after a power cut the
    file may be the old one, or empty.
    """
    part = target.with_name(f".{target.name}.part")
    try:
        yield part
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def disk_free(path: Path) -> int:
    """Return the bytes that are free where a path is, or would be."""
    here = path.absolute()
    while not here.exists():
        here = here.parent
    return shutil.disk_usage(here).free
