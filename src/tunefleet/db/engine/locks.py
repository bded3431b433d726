"""One server per data folder and per database: file locks, with a file that names the holder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tunefleet.errors import StoreError


@dataclass(frozen=True, slots=True)
class FolderLock:
    """A held lock; the operating system releases it when the process ends for any reason."""

    _lock: FileLock

    @classmethod
    def take(cls, folder: Path) -> FolderLock:
        """Create a folder if it does not exist, and lock it.

        Raises:
            StoreError: If another process holds the lock (the message names it), or the folder is not writable.
        """
        try:
            # Private by default; an existing folder keeps the mode that its owner set.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cls(_locked(folder / "lock", f"{os.getpid()}\n"))
        except Timeout:
            raise StoreError(
                f"The data folder {folder} is in use by {_holder(folder / 'lock')}.",
                hint="Stop that process, or use another folder with --data.",
            ) from None
        except FileExistsError:
            raise StoreError(f"{folder} is a file, not a folder.", hint="Choose a folder with --data.") from None
        except OSError as error:
            raise StoreError(
                f"Cannot use the data folder {folder}: {error.strerror}.",
                hint="Check its owner, or use another folder with --data.",
            ) from error

    @classmethod
    def take_database(cls, file: Path, folder: Path) -> FolderLock:
        """Lock a database file, wherever it is.

        Raises:
            StoreError: If another server has the database (the message names both), or the lock cannot be written.
        """
        # Resolve links, so that the same file has one lock.
        # A server keeps the state of its workers in memory: two servers on one file would contradict each other.
        file = file.resolve()
        try:
            if not file.parent.is_dir():
                raise StoreError(
                    f"Cannot use the database {file}: there is no folder {file.parent}.",
                    hint="Create the folder, or check TUNEFLEET_DATABASE_URL.",
                )
            return cls(_locked(file.with_name(f"{file.name}.lock"), f"{os.getpid()} {folder.absolute()}\n"))
        except Timeout:
            raise StoreError(
                f"The database {file} is in use by {_holder(file.with_name(f'{file.name}.lock'))}.",
                hint="An SQLite database supports one server: stop that one, or set another TUNEFLEET_DATABASE_URL.",
            ) from None
        except OSError as error:
            raise StoreError(
                f"Cannot use the database {file}: {error.strerror}.",
                hint="Check the owner of its folder, and TUNEFLEET_DATABASE_URL.",
            ) from error

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


def _locked(path: Path, holder: str) -> FileLock:
    lock = FileLock(path)
    lock.acquire(timeout=0)
    # Next to the lock file, not in it: every attempt to take the lock truncates that file.
    path.with_name(f"{path.name}.pid").write_text(holder)
    return lock


def _holder(path: Path) -> str:
    try:
        pid, _, folder = path.with_name(f"{path.name}.pid").read_text().strip().partition(" ")
        return f"process {int(pid)}{f', a server with its data in {folder}' if folder else ''}"
    except (OSError, ValueError):
        return "another process"
