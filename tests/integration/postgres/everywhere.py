"""Run tests that were written for SQLite on PostgreSQL: `pytest --store postgres`.

Where a test opens a file, a database is opened that belongs to it, and the file says which: a copy of the file is a
copy of the database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.postgres.process import PostgresProcess
from tunefleet.db import Database


class Everywhere:
    """Stands between `Database.open` and the files that tests name."""

    def __init__(self, process: PostgresProcess) -> None:
        self._process = process
        self._made: dict[Path, str] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        sqlite = Database.open

        def opened(target: Path | str, **options: Any) -> Database:
            named = target.removeprefix("sqlite:///") if isinstance(target, str) else target
            return sqlite(self.url(Path(named)) if "://" not in str(named) else str(named), **options)

        patch.setattr(Database, "open", opened)

    def url(self, file: Path) -> str:
        """Return the URL of the database that a file stands for."""
        file = file.resolve()
        if file not in self._made:
            # What a copied file stands for has no connection now: its owner was closed before it was copied.
            origin = file.read_text() if file.exists() else ""
            url = self._process.create(origin.rpartition("/")[2]) if origin else self._process.copy()
            file.write_text(url)
            self._made[file] = url
        return self._made[file]

    def drop(self, folder: Path) -> None:
        """Drop the databases of a test that is over."""
        for file in [each for each in self._made if each.is_relative_to(folder)]:
            self._process.drop(self._made.pop(file))
