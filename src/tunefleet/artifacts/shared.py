"""Files named by their digest in a folder that several servers share, on NFS for example.

    <shared>/blobs/ab/<digest>        whole and verified; never changed again
    <shared>/arriving/<random>.part   on its way there

Nothing there is locked: a file is copied under a name that no other server can have, hashed again as it goes, synced
and renamed. Uploads gather in each server's own folder.
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

_AWAY: Final = frozenset({errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN})


class SharedFolderStore(FolderStore):
    """Content-addressed files in a folder of several servers.

    Raises:
        MachineError: If the folder is not there or cannot be written, or the own one still holds files.
    """

    def __init__(self, root: Path, shared: Path) -> None:
        refuse_two_places(root, f"file://{shared}")
        if not shared.is_dir():
            raise MachineError(f"The shared folder {shared} is not there.", hint="Mount it, or make it.")
        try:
            super().__init__(shared)
            self._arriving = shared / "arriving"
            self._arriving.mkdir(exist_ok=True)
            probe = self._arriving / f"{secrets.token_hex(8)}.part"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise MachineError(
                f"The shared folder {shared} cannot be written: {error.strerror}.",
                hint="Let the user of the server write there.",
            ) from error
        self.root, self.shared = root, shared
        self.uploads = root / "uploads"
        self.uploads.mkdir(parents=True, exist_ok=True)

    def keep(self, part: Path, digest: str) -> None:
        """Copy a file there and give it its name, durably; of several servers that do, any may be first.

        Raises:
            NoRoomError: If the folder is full; what was sent is kept.
            UnreachableError: If the folder does not answer.
        """
        target = self._path(digest)
        copy = self._arriving / f"{secrets.token_hex(16)}.part"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._copy(part, copy, digest)
            # Not kept if it is there: what lies under this name is the same, and the younger date protects it.
            super().keep(copy, digest)
        except OSError as error:
            raise self._in_our_words(error) from error
        finally:
            copy.unlink(missing_ok=True)
        part.unlink()

    def delete(self, digest: str) -> None:
        """Remove a file; where another server has just done so there is nothing to do."""
        self._path(digest).unlink(missing_ok=True)

    def sweep_partials(self, older_than_s: float) -> int:
        """Remove what uploads left, here and in the shared folder; returns the bytes that were freed."""
        freed, limit = super().sweep_partials(older_than_s), time.time() - older_than_s
        for each in self._arriving.glob("*.part"):
            try:
                status = each.stat()
                if status.st_mtime <= limit:
                    each.unlink()
                    freed += status.st_size
            except FileNotFoundError:
                continue  # it arrived, or another server sweeps too
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
                hint="Free some space or remove old artifacts; what was sent is kept and goes on.",
            )
        if error.errno in _AWAY:
            return UnreachableError(f"The shared folder {self.shared} does not answer: {error.strerror}.")
        return MachineError(
            f"The shared folder {self.shared} cannot be written: {error.strerror}.",
            hint="Let the user of the server write there.",
        )
