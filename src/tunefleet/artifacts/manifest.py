"""Manifest of an artifact: a sorted list of files with digests, and the digest of that list."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from tunefleet.errors import ArtifactError, NotFoundError
from tunefleet.fsutil import Progress, hash_file
from tunefleet.schemas.api import FileEntry

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DRIVE = re.compile(r"[A-Za-z]:")
_MAX_PATH_BYTES: Final = 1024
_MAX_PART_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of an artifact and its local path."""

    entry: FileEntry
    path: Path


def is_digest(text: str) -> bool:
    """Return whether a string is a lower-case hex SHA-256."""
    return _DIGEST.fullmatch(text) is not None


def manifest_digest(files: Iterable[FileEntry]) -> str:
    """Return the digest of an artifact: SHA-256 of the canonical JSON `[[path, digest, size_bytes], …]`, sorted."""
    rows = sorted((file.path, file.digest, file.size_bytes) for file in files)
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def check_path(path: str) -> str:
    """Check that a path of an artifact is a file below its folder, on every operating system.

    Raises:
        ArtifactError: If it is absolute, contains `..`, or has a part that a file system could interpret differently.
    """
    parts = path.split("/")
    shown = repr(path[:200])
    if not path or path.startswith("/") or _DRIVE.match(path):
        raise ArtifactError(f"The file name {shown} is not a relative path.")
    if any(part in {"", ".", ".."} for part in parts):
        raise ArtifactError(f"The file name {shown} leads out of its folder or has an empty part.")
    if "\\" in path or not path.isprintable():
        raise ArtifactError(f"The file name {shown} contains a backslash or an unprintable character.")
    if len(path.encode()) > _MAX_PATH_BYTES or any(len(part.encode()) > _MAX_PART_BYTES for part in parts):
        raise ArtifactError(f"The file name {shown} is too long.")
    return path


def check_files(files: Iterable[FileEntry]) -> None:
    """Check the file list of an artifact from an untrusted source.

    Raises:
        ArtifactError: If it is empty, a path is unsafe or duplicate or both file and folder, or a digest or size is
            invalid.
    """
    names: set[str] = set()
    for file in files:
        check_path(file.path)
        if file.path in names:
            raise ArtifactError(f"The file {file.path!r} is listed twice.")
        if not is_digest(file.digest) or file.size_bytes < 0:
            raise ArtifactError(f"The digest or size of {file.path!r} is invalid.")
        names.add(file.path)
    if not names:
        raise ArtifactError("The file list is empty.")
    for name in names:
        for folder in PurePosixPath(name).parents:
            if str(folder) in names:
                raise ArtifactError(f"{str(folder)!r} is listed as a file and as a folder.")


def target_path(root: Path, path: str) -> Path:
    """Return the path of an artifact's file below a folder.

    Raises:
        ArtifactError: If the path is unsafe.
    """
    return root.joinpath(*check_path(path).split("/"))


def scan(path: Path, *, progress: Progress | None = None, skip: Callable[[str], bool] | None = None) -> list[LocalFile]:
    """List and hash a file, or every file of a folder.

    Args:
        progress: Called with the number of bytes hashed, chunk by chunk.

    Returns:
        Files sorted by path. A single file has its name as path. Links to files in the same folder count as files.

    Raises:
        NotFoundError: If the path does not exist.
        ArtifactError: If the folder has no files, a link that leads out of it, or a special file; or a file changed
            while it was read.
    """
    root = path.expanduser()
    if not root.exists():
        raise NotFoundError(f"File or folder not found: {str(path)!r}.", hint="Check the path.")
    root = root.resolve()
    if not root.is_dir():
        return [_local_file(root, root.name, progress)]
    found = [
        _local_file(file, name, progress)
        for file, name in sorted(_walk(root), key=lambda pair: pair[1])
        if skip is None or not skip(name)
    ]
    if not found:
        raise ArtifactError(f"The folder {str(path)!r} contains no files.")
    return found


def scan_size(path: Path) -> int:
    """Return the number of bytes that `scan` will hash, for a progress bar; raises as `scan`, but reads no file."""
    root = path.expanduser()
    if not root.exists():
        raise NotFoundError(f"File or folder not found: {str(path)!r}.", hint="Check the path.")
    root = root.resolve()
    return sum(file.stat().st_size for file, _ in _walk(root)) if root.is_dir() else root.stat().st_size


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    for folder, folders, names in os.walk(root, onerror=_unreadable):
        parent = Path(folder)
        for name in [*names, *(name for name in folders if (parent / name).is_symlink())]:
            file = parent / name
            if file.is_symlink():
                _check_link(file, root)
            yield file, file.relative_to(root).as_posix()


def _unreadable(error: OSError) -> None:
    raise ArtifactError(f"Cannot read {error.filename}: {error.strerror}.", hint="Check its permissions.")


def _check_link(link: Path, root: Path) -> None:
    target = link.resolve()
    if not target.is_relative_to(root):
        raise ArtifactError(
            f"{str(link)!r} is a link that leads out of the folder, to {str(target)!r}.",
            hint="Replace it with its target (`cp -rL` copies a folder with resolved links).",
        )
    if target.is_dir():
        raise ArtifactError(f"{str(link)!r} is a link to a folder.", hint="Replace it with the folder, or remove it.")


def _local_file(path: Path, name: str, progress: Progress | None) -> LocalFile:
    try:
        before = path.stat()
        if not stat.S_ISREG(before.st_mode):
            raise ArtifactError(f"{str(path)!r} is not a regular file.", hint="Remove it from the folder.")
        check_path(name)
        digest, size_bytes = hash_file(path, progress=progress)
        after = path.stat()
    except OSError as error:
        raise ArtifactError(f"Cannot read {str(path)!r}: {error.strerror}.") from error
    # Otherwise the digest could describe a mix of the old and the new content.
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or size_bytes != after.st_size:
        raise ArtifactError(f"{str(path)!r} changed while it was read.", hint="Try again when no process writes to it.")
    return LocalFile(FileEntry(path=name, digest=digest, size_bytes=size_bytes), path)
