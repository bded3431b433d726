"""Look at a database file without opening it for work: nothing is migrated, locked or written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

_BUSY_S: Final = 2.0


def fault_of(database: Path) -> str | None:
    """Say what is wrong with an SQLite file.

    Args:
        database: The file; a server may be using it.

    Returns:
        The fault in SQLite's words; `None` if the file is whole.
    """
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as file:
            (verdict,) = file.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return None if verdict == "ok" else str(verdict)
