"""`tunefleet db`, `backup` and `restore` on the server's machine, and what the doctor says of a database."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text

from tests.integration.postgres.process import PASSWORD
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.main import run
from tunefleet.cli.server import checks
from tunefleet.db import Database
from tunefleet.db.engine import migrate, offline, sqlite
from tunefleet.db.tables.core import meta


@pytest.fixture
def place(empty: Path | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path | str:
    """An empty database that the settings name."""
    monkeypatch.setenv("TUNEFLEET_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TUNEFLEET_DATABASE_URL", empty if isinstance(empty, str) else f"sqlite:///{empty}")
    return empty


def said(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert run([*args, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_a_database_is_checked_and_migrated(
    place: Path | str, capsys: pytest.CaptureFixture[str], next_revision: Callable[[], str]
) -> None:
    assert said(capsys, "db", "check")["revision"] is None
    Database.open(place).close()
    before, after = migrate.HEAD, next_revision()
    assert run(["db", "check"]) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert before in shown
    assert f"this version needs {after}: tunefleet db migrate" in shown
    assert checks.database().state == "warning"
    moved = said(capsys, "db", "migrate")
    assert (moved["before"], moved["revision"], moved["current"]) == (before, after, True)
    copy = str(sqlite.path_of(place, before)) if isinstance(place, Path) else None
    assert moved["copy"] == copy
    assert said(capsys, "db", "migrate")["copy"] is None
    assert run(["db", "migrate"]) == 0
    assert "already" in capsys.readouterr().out
    assert run(["db", "check"]) == 0
    assert PASSWORD not in capsys.readouterr().out
    found = checks.database()
    assert found.state == "good"
    assert after in found.found


@pytest.mark.parametrize(("revision", "made"), [("9999", "newer"), ("0072", "development")])
def test_a_database_that_no_migration_leads_from_is_named(
    place: Path | str, tmp_path: Path, capsys: pytest.CaptureFixture[str], revision: str, made: str
) -> None:
    Database.open(place).close()
    with offline.writing(place, tmp_path / "data") as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    for command in (["db", "check"], ["db", "migrate"], ["backup", str(tmp_path / "x.zip")]):
        assert run(command) == ExitCode.MACHINE
        told = " ".join(capsys.readouterr().err.split())
        assert f"was created by a {made} version of Tunefleet (revision {revision}" in told
    found = checks.database()
    assert (found.state, f"revision {revision}" in found.found) == ("bad", True)


def test_a_backup_is_restored_by_hand(place: Path | str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Database.open(place)
    server.write(lambda c: c.execute(insert(meta).values(name="a", value="b"))).result(30)
    file = tmp_path / "fleet.zip"
    # While it is open; the other row is the project that every database has.
    assert said(capsys, "backup", str(file))["rows"] == 2
    server.close()
    assert run(["restore", str(file)]) == ExitCode.CONFLICT
    assert "--force" in capsys.readouterr().err
    with offline.writing(place, tmp_path / "data") as connection:
        connection.execute(text("UPDATE meta SET value = 'changed'"))
    assert run(["restore", str(file), "--force"]) == 0
    shown = capsys.readouterr().out.replace("\n", " ")
    assert "Restored 2 rows" in shown
    assert "files (artifacts) stay in" in shown
    with offline.reading(place) as connection:
        assert connection.execute(text("SELECT value FROM meta")).scalar_one() == "b"
    # What was restored is the server's as before.
    server = Database.open(place)
    server.close()


def test_a_database_that_cannot_be_reached_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    monkeypatch.setenv("TUNEFLEET_DATABASE_URL", "postgresql://me:hushhush@127.0.0.1:1/x")
    found = checks.database()
    assert (found.state, "Connection refused" in found.found) == ("bad", True)
    for command in (["db", "check"], ["db", "migrate"], ["backup", str(home / "x.zip")]):
        assert run(command) == ExitCode.MACHINE
        told = capsys.readouterr().err
        assert "postgresql://me@127.0.0.1:1/x" in told
        assert "hushhush" not in told


def test_a_backup_that_cannot_be_written_or_read_is_named(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(tmp_path / "data")]
    assert run(["backup", str(tmp_path / "fleet.zip"), *data]) == ExitCode.MACHINE
    assert "Database" in capsys.readouterr().err
    assert run(["backup", str(tmp_path / "no" / "fleet.zip"), *data]) == ExitCode.MACHINE
    assert "Folder" in capsys.readouterr().err
    assert run(["restore", str(tmp_path / "fleet.zip"), *data]) == ExitCode.MACHINE
    assert "Cannot read" in capsys.readouterr().err
    assert not (tmp_path / "data" / "tunefleet.db").exists()
