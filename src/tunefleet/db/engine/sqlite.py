"""Copies of an SQLite database that are made before its tables are migrated, for the way back.

A copy lies beside the database, is an SQLite file of its own, and is named by the revision that it holds.
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
"""How many copies stay; older ones are removed when a new one is whole."""
_PRIVATE: Final = 0o600


def path_of(database: Path, revision: str) -> Path:
    """Return where the copy of a revision lies."""
    return database.with_name(f"{database.name}.revision-{revision}")


def of(database: Path) -> list[Path]:
    """Return the copies that there are, the newest first."""
    found = database.parent.glob(f"{database.name}.revision-*")
    return sorted((path for path in found if path.suffix != ".part"), key=lambda path: -path.stat().st_mtime_ns)


def make(database: Path, revision: str, newest: str) -> Path:
    """Copy a database as it is committed, and remove all but the newest copies.

    Returns:
        The copy: whole, on the disk, and readable by this user alone.

    Raises:
        StoreError: If it cannot be written; the database is as it was.
    """
    copy = path_of(database, revision)
    begun = copy.with_name(f"{copy.name}.part")
    try:
        begun.unlink(missing_ok=True)
        _write(database, begun)
        begun.replace(copy)
        sync_path(copy.parent)
    except (OSError, sqlite3.Error) as error:
        if begun.is_file():
            begun.unlink()
        raise StoreError(
            f"The database {database} was not migrated: a copy of it could not be written to {copy.parent} ({error}).",
            hint="Make room for a second file of its size there; the database is as it was.",
            detail=repr(error),
        ) from error
    log.info("The tables go from revision %s to %s. The database as it was is kept in %s.", revision, newest, copy)
    for older in of(database)[KEPT:]:
        older.unlink()
        log.info("The older copy %s was removed.", older)
    return copy


def _write(database: Path, copy: Path) -> None:
    # Made before SQLite opens it: it holds what tokens are made of, as the database does.
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE))
    with closing(sqlite3.connect(database)) as there, closing(sqlite3.connect(copy)) as here:
        there.backup(here)
        # One file, without SQLite's others beside it.
        here.execute("PRAGMA journal_mode = DELETE")
    sync_path(copy)


_BUSY_S: Final = 2.0


def fault_of(database: Path) -> str | None:
    """Say what is wrong with an SQLite file."""
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as file:
            (verdict,) = file.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return None if verdict == "ok" else str(verdict)
