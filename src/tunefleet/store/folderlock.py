"""One process a data folder: a file lock, and beside it who holds it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tunefleet.errors import StoreError


@dataclass(frozen=True, slots=True)
class FolderLock:
    """A held lock; it ends with the process, however that ends."""

    _lock: FileLock

    @classmethod
    def take(cls, folder: Path) -> FolderLock:
        """Make a folder if there is none, and lock it.

        Raises:
            StoreError: If another process holds the lock (the message names it), or the folder cannot be written to.
        """
        try:
            # Others have no business there; a folder that is there already stays as its owner made it.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FileLock(folder / "lock")
            lock.acquire(timeout=0)
            # Beside the lock, not in it: whoever tries to take the lock empties that file.
            (folder / "lock.pid").write_text(f"{os.getpid()}\n")
        except Timeout:
            raise StoreError(
                f"The data folder {folder} is in use by {_holder(folder)}.",
                hint="Stop that process, or use another folder with --data.",
            ) from None
        except FileExistsError:
            raise StoreError(
                f"{folder} is a file, not a folder.", hint="Choose a folder, new or old, with --data."
            ) from None
        except OSError as error:
            raise StoreError(
                f"The data folder {folder} cannot be used: {error.strerror}.",
                hint="Check who owns it, or use another folder with --data.",
            ) from error
        return cls(lock)

    def release(self) -> None:
        """Let another process have the folder."""
        self._lock.release()


def _holder(folder: Path) -> str:
    try:
        return f"process {int((folder / 'lock.pid').read_text())}"
    except (OSError, ValueError):
        return "another process"
