"""One server a data folder, and one a database: file locks, and beside each who holds it."""

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
            return cls(_locked(folder / "lock", f"{os.getpid()}\n"))
        except Timeout:
            raise StoreError(
                f"The data folder {folder} is in use by {_holder(folder / 'lock')}.",
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

    @classmethod
    def take_database(cls, file: Path, folder: Path) -> FolderLock:
        """Lock a database, wherever it lies: what a server knows of its workers is in its memory, so two would differ.

        Raises:
            StoreError: If another server has the database (the message names both), or the lock cannot be written.
        """
        # By whatever links it is reached, it is one file.
        file = file.resolve()
        try:
            if not file.parent.is_dir():
                raise StoreError(
                    f"The database {file} cannot be used: there is no folder {file.parent}.",
                    hint="Make it, or mend TUNEFLEET_DATABASE_URL.",
                )
            return cls(_locked(file.with_name(f"{file.name}.lock"), f"{os.getpid()} {folder.absolute()}\n"))
        except Timeout:
            raise StoreError(
                f"The database {file} is in use by {_holder(file.with_name(f'{file.name}.lock'))}.",
                hint="A database has one server: stop that one, or give this one another TUNEFLEET_DATABASE_URL.",
            ) from None
        except OSError as error:
            raise StoreError(
                f"The database {file} cannot be used: {error.strerror}.",
                hint="Check who owns its folder, or mend TUNEFLEET_DATABASE_URL.",
            ) from error

    def release(self) -> None:
        """Let another process have it."""
        self._lock.release()


def _locked(path: Path, holder: str) -> FileLock:
    lock = FileLock(path)
    lock.acquire(timeout=0)
    # Beside the lock, not in it: whoever tries to take the lock empties that file.
    path.with_name(f"{path.name}.pid").write_text(holder)
    return lock


def _holder(path: Path) -> str:
    try:
        pid, _, folder = path.with_name(f"{path.name}.pid").read_text().strip().partition(" ")
        return f"process {int(pid)}{f', a server with its data in {folder}' if folder else ''}"
    except (OSError, ValueError):
        return "another process"
