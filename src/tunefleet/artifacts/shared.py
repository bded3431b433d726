"""Content-addressed files in a folder that several servers share, for example on NFS.

Nothing there is locked: a file is copied to `arriving/<random>.part`, a name that no other server uses, hashed again,
synced and renamed to `blobs/ab/<digest>`. Uploads are collected in each server's own folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from pathlib import Path
from typing import Final

from tunefleet.artifacts.blobs import NoRoomError
from tunefleet.artifacts.folder import FolderStore
from tunefleet.artifacts.remote import check, read_pieces, refuse_two_places
from tunefleet.errors import MachineError, UnreachableError, is_disk_full
from tunefleet.fsutil import CHUNK_BYTES

# Errors of an unavailable network file system; others, such as missing permissions, do not go away.
_AWAY: Final = frozenset({errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN})


class SharedFolderStore(FolderStore):
    """Content-addressed files in a folder of several servers.

    Raises:
        MachineError: If the folder is missing or not writable, or the server's own folder still contains files.
    """

    def __init__(self, root: Path, shared: Path) -> None:
        refuse_two_places(root, f"file://{shared}")
        if not shared.is_dir():
            raise MachineError(f"The shared folder {shared} does not exist.", hint="Mount or create it.")
        try:
            super().__init__(shared)
            self._arriving = shared / "arriving"
            self._arriving.mkdir(exist_ok=True)
            probe = self._arriving / f"{secrets.token_hex(8)}.part"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise MachineError(
                f"Cannot write to the shared folder {shared}: {error.strerror}.",
                hint="Grant write access to the server's user.",
            ) from error
        self.root, self.shared = root, shared
        self.uploads = root / "uploads"
        self.uploads.mkdir(parents=True, exist_ok=True)

    def keep(self, part: Path, digest: str) -> None:
        """Copy a file there under its final name, durably; several servers may do so at the same time.

        Raises:
            NoRoomError: If the folder is full; the upload is kept.
            UnreachableError: If the folder does not respond.
        """
        target = self._path(digest)
        copy = self._arriving / f"{secrets.token_hex(16)}.part"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._copy(part, copy, digest)
            # Also if it exists already: the content is the same, and the newer time protects it from collection.
            super().keep(copy, digest)
        except OSError as error:
            raise self._in_our_words(error) from error
        finally:
            copy.unlink(missing_ok=True)
        part.unlink()

    def delete(self, digest: str) -> None:
        """Delete a file; ignores one that another server has just deleted."""
        self._path(digest).unlink(missing_ok=True)

    def sweep_partials(self, older_than_s: float) -> int:
        """Delete abandoned uploads, here and in the shared folder; returns the bytes freed."""
        freed, limit = super().sweep_partials(older_than_s), time.time() - older_than_s
        for each in self._arriving.glob("*.part"):
            try:
                status = each.stat()
                if status.st_mtime <= limit:
                    each.unlink()
                    freed += status.st_size
            except FileNotFoundError:
                continue  # it was renamed, or another server swept it
        return freed

    def _copy(self, part: Path, copy: Path, digest: str) -> None:
        found = hashlib.sha256()
        with copy.open("xb") as file:
            for piece in read_pieces(part, CHUNK_BYTES):
                found.update(piece)
                file.write(piece)
            check(found.hexdigest(), digest)
            file.flush()
            os.fsync(file.fileno())

    def _in_our_words(self, error: OSError) -> MachineError | UnreachableError:
        if is_disk_full(error):
            return NoRoomError(
                f"The shared folder {self.shared} is full.",
                hint="Free some space or delete old artifacts. Interrupted uploads are kept and resume.",
            )
        if error.errno in _AWAY:
            return UnreachableError(f"The shared folder {self.shared} does not respond: {error.strerror}.")
        return MachineError(
            f"Cannot write to the shared folder {self.shared}: {error.strerror}.",
            hint="Grant write access to the server's user.",
        )
