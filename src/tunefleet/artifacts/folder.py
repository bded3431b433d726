"""Content-addressed files in a folder.

`blobs/ab/<digest>` is complete, verified and never changed; `quarantine/<digest>` is a file that the disk has
corrupted. A name appears only after its content was hashed and synced.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tunefleet.artifacts.blobs import BlobStore, checked, not_here
from tunefleet.artifacts.manifest import is_digest
from tunefleet.fsutil import CHUNK_BYTES, sync_path

BLOBS = "blobs"
_LARGE_BYTES: Final = 1 << 20
_unlinker = ThreadPoolExecutor(1, thread_name_prefix="tunefleet-unlink")


class FolderStore(BlobStore):
    """Content-addressed files in a folder; safe for several threads and processes."""

    may_rot = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._blobs = root / BLOBS
        self._blobs.mkdir(parents=True, exist_ok=True)

    def find(self, digest: str) -> int | None:
        """Return the size of a file in bytes; `None` if it is not stored completely."""
        try:
            return self._path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def path(self, digest: str) -> Path:
        """Return the path of a file; it must not be changed."""
        path = self._path(digest)
        if not path.is_file():
            raise not_here(digest)
        return path

    def source(self, digest: str, filename: str) -> Path:  # noqa: ARG002 a path has a name already
        """Return the path of a file; raises as `path` does."""
        return self.path(digest)

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield the content of a file; raises as `path` does."""
        with self.path(digest).open("rb") as file:
            while piece := file.read(CHUNK_BYTES):
                yield piece

    def kept_before(self, at: float) -> dict[str, int]:
        """Return digest and size in bytes of each file that was stored before a Unix time."""
        found: dict[str, int] = {}
        for path in list(self._blobs.glob("*/*")):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # deleted meanwhile
            if is_digest(path.name) and status.st_mtime < at:
                found[path.name] = status.st_size
        return found

    def keep(self, part: Path, digest: str) -> None:
        """Move a synced file to its final name, durably."""
        target = self._path(digest)
        if not target.parent.exists():
            target.parent.mkdir(exist_ok=True)
            sync_path(target.parent.parent)
        part.replace(target)
        sync_path(target.parent)

    def delete(self, digest: str) -> None:
        """Delete a file; freeing the space of a large one takes a while, and is done in another thread."""
        path = self._path(digest)
        try:
            if path.stat().st_size < _LARGE_BYTES:
                path.unlink()
                return
            # Named like an upload, so that the sweep of abandoned uploads finds it if this process is killed.
            doomed = self.uploads / f"gone-{secrets.token_hex(8)}.part"
            path.replace(doomed)
        except FileNotFoundError:
            return
        _unlinker.submit(doomed.unlink, missing_ok=True)

    def set_aside(self, digest: str) -> bool:
        """Move a damaged file to quarantine; returns whether there was one."""
        aside = self._blobs.parent / "quarantine"
        aside.mkdir(exist_ok=True)
        try:
            self._path(digest).replace(aside / digest)
        except FileNotFoundError:
            return False
        sync_path(aside)
        return True

    def _path(self, digest: str) -> Path:
        return self._blobs / checked(digest)[:2] / digest
