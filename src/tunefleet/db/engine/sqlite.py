"""Copies of an SQLite database that are made before a migration, for a downgrade.

A copy is an SQLite file next to the database, named after its revision.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from tunefleet.errors import StoreError
from tunefleet.fsutil import sync_path

log = logging.getLogger(__name__)
KEPT: Final = 2
"""Number of copies to keep; older ones are removed when a new one is complete."""
_PRIVATE: Final = 0o600
_BUSY_S: Final = 2.0


def path_of(database: Path, revision: str) -> Path:
    """Return the path of a revision's copy."""
    return database.with_name(f"{database.name}.revision-{revision}")


def of(database: Path) -> list[Path]:
    """Return the existing copies, newest first."""
    found = database.parent.glob(f"{database.name}.revision-*")
    return sorted((path for path in found if path.suffix != ".part"), key=lambda path: -path.stat().st_mtime_ns)


def make(database: Path, revision: str, newest: str) -> Path:
    """Copy the committed state of a database, and remove all but the newest copies.

    Returns:
        The copy: complete, synced to disk, and readable only by this user.

    Raises:
        StoreError: If it cannot be written; the database is unchanged.
    """
    copy = path_of(database, revision)
    part_file = copy.with_name(f"{copy.name}.part")
    try:
        part_file.unlink(missing_ok=True)
        _write(database, part_file)
        part_file.replace(copy)
        # The rename is durable only once the folder is synced, too.
        sync_path(copy.parent)
    except (OSError, sqlite3.Error) as error:
        if part_file.is_file():
            part_file.unlink()
        raise StoreError(
            f"The database {database} was not migrated: cannot write a copy of it to {copy.parent} ({error}).",
            hint="Free space for a second file of its size. The database is unchanged.",
            detail=repr(error),
        ) from error
    log.info(
        "Migrating the tables from revision %s to %s. The previous database is kept in %s.", revision, newest, copy
    )
    for older in of(database)[KEPT:]:
        older.unlink()
        log.info("Removed the older copy %s.", older)
    return copy


def _write(database: Path, copy: Path) -> None:
    # Created before SQLite opens it, with a private mode: like the database, it contains the secret of tokens.
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE))
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        # A single file, without WAL files next to it.
        target.execute("PRAGMA journal_mode = DELETE")
    sync_path(copy)


def fault_of(database: Path) -> str | None:
    """Return what is wrong with an SQLite file; `None` if it is intact."""
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as file:
            (result,) = file.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return None if result == "ok" else str(result)
