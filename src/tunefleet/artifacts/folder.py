"""A folder of files named by their digest.

    <root>/blobs/ab/<digest>       whole and verified; never changed again
    <root>/quarantine/<digest>     what a disk has changed all the same

A name appears only after its content was hashed and synced.
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
        """Return the length of a file in bytes; null if it is not here whole."""
        try:
            return self._path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def path(self, digest: str) -> Path:
        """Return where a file lies; it must not be changed."""
        path = self._path(digest)
        if not path.is_file():
            raise not_here(digest)
        return path

    def source(self, digest: str, filename: str) -> Path:  # noqa: ARG002 a path has a name already
        """Return where a file lies; raises as `path` does."""
        return self.path(digest)

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield the content of a file; raises as `path` does."""
        with self.path(digest).open("rb") as file:
            while piece := file.read(CHUNK_BYTES):
                yield piece

    def kept_before(self, at: float) -> dict[str, int]:
        """Return digest and size in bytes of each file that was kept before a Unix time."""
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
        """Give a synced file its name, durably."""
        target = self._path(digest)
        if not target.parent.exists():
            target.parent.mkdir(exist_ok=True)
            sync_path(target.parent.parent)
        part.replace(target)
        sync_path(target.parent)

    def delete(self, digest: str) -> None:
        """Remove a file; giving back the room of a large one takes a while, and is done by another thread."""
        path = self._path(digest)
        try:
            if path.stat().st_size < _LARGE_BYTES:
                path.unlink()
                return
            # The sweep of given-up uploads finds it, should this process be killed.
            gone = self.uploads / f"gone-{secrets.token_hex(8)}.part"
            path.replace(gone)
        except FileNotFoundError:
            return
        _unlinker.submit(gone.unlink, missing_ok=True)

    def set_aside(self, digest: str) -> bool:
        """Take a damaged file out of the store and keep it for a look; returns whether there was one."""
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
