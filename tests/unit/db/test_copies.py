"""Before an older database is migrated it is copied: whole, beside it, for the older version to have back."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tunefleet.cli.main import app
from tunefleet.db import Database
from tunefleet.db.engine import migrate, sqlite
from tunefleet.db.engine.offline import status_of
from tunefleet.errors import StoreError

REVISION = migrate.HEAD


@pytest.fixture
def old(tmp_path: Path, next_revision: Callable[[], str]) -> Path:
    """A database of the version before this one, with a row."""
    database = tmp_path / "tunefleet.db"
    Database.open(database).close()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("INSERT INTO meta (name, value) VALUES ('label-1', 'red')")
    next_revision()
    return database


def contents(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return list(connection.iterdump())


def test_the_copy_is_the_database_as_it_was(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = contents(old)
    with caplog.at_level(logging.INFO):
        Database.open(old).close()
    (copy,) = sqlite.of(old)
    assert copy.name == f"tunefleet.db.revision-{REVISION}"
    assert contents(copy) == before
    assert (status_of(old).revision, status_of(copy).revision) == (migrate.HEAD, REVISION)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert f"The previous database is kept in {copy}." in caplog.text
    # Nothing else of it is left: neither SQLite's own files nor a half of it.
    assert {path.name for path in old.parent.glob("*.revision-*")} == {copy.name}


def test_what_was_written_last_and_lies_in_the_log_of_sqlite_is_in_the_copy(old: Path) -> None:
    with closing(sqlite3.connect(old)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("INSERT INTO meta (name, value) VALUES ('last', 'word')")
        other.commit()
        assert Path(f"{old}-wal").stat().st_size > 0
        Database.open(old).close()
    (copy,) = sqlite.of(old)
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT value FROM meta WHERE name = 'last'").fetchone() == ("word",)


def test_the_older_version_can_have_it_back_and_it_is_migrated_again(old: Path) -> None:
    before = contents(old)
    Database.open(old).close()
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("INSERT INTO meta (name, value) VALUES ('of', 'the newer version')")
    sqlite.path_of(old, REVISION).replace(old)
    assert contents(old) == before
    Database.open(old).close()
    assert status_of(old).current
    assert [contents(copy) for copy in sqlite.of(old)] == [before]


def test_neither_a_new_database_nor_one_of_this_version_is_copied(tmp_path: Path) -> None:
    database = tmp_path / "tunefleet.db"
    Database.open(database).close()
    Database.open(database).close()
    assert sqlite.of(database) == []


def test_the_newest_copies_stay(old: Path) -> None:
    for age, revision in enumerate(["0203", "0202", "0000"], 1):
        path = sqlite.path_of(old, revision)
        path.write_text(revision)
        os.utime(path, ns=(0, 10**18 - age))
    Database.open(old).close()
    assert [path.name.rpartition("-")[2] for path in sqlite.of(old)] == [REVISION, "0203"]


def test_where_no_copy_can_be_written_nothing_is_migrated(old: Path) -> None:
    before = contents(old)
    in_the_way = sqlite.path_of(old, REVISION)
    in_the_way.mkdir()
    with pytest.raises(StoreError, match=r"was not migrated: cannot write a copy") as failed:
        Database.open(old)
    assert "Free space" in str(failed.value.hint)
    assert contents(old) == before
    assert list(old.parent.glob("*.part")) == []
    in_the_way.rmdir()
    Database.open(old).close()
    assert contents(in_the_way) == before


def test_the_command_says_where_the_copy_is(old: Path) -> None:
    command = ["db", "migrate", "--data", str(old.parent), "--json"]
    told = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert (told["before"], told["revision"]) == (REVISION, migrate.HEAD)
    assert contents(Path(told["copy"]))
    again = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert (again["before"], again["copy"]) == (migrate.HEAD, None)
