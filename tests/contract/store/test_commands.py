"""`tunefleet db`, `backup` and `restore` on the server's machine, and what the doctor says of a database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text

from tests.integration.postgres.process import PASSWORD
from tunefleet.cli import checks
from tunefleet.cli.exitcodes import ExitCode
from tunefleet.cli.main import run
from tunefleet.store import Database, migrate, opening
from tunefleet.store.tables import meta


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
    place: Path | str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "db", "check")["revision"] is None
    with opening.writing(place, tmp_path / "data") as connection:
        migrate.upgrade(connection, "0008")
    assert run(["db", "check"]) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert "0008" in shown
    assert "tunefleet db migrate" in shown
    assert checks.database().state == "warning"
    moved = said(capsys, "db", "migrate")
    assert (moved["before"], moved["revision"], moved["current"]) == ("0008", migrate.HEAD, True)
    assert run(["db", "migrate"]) == 0
    assert "already" in capsys.readouterr().out
    assert run(["db", "check"]) == 0
    assert PASSWORD not in capsys.readouterr().out
    found = checks.database()
    assert found.state == "good"
    assert migrate.HEAD in found.found


def test_a_backup_is_restored_by_hand(place: Path | str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Database.open(place)
    server.write(lambda c: c.execute(insert(meta).values(name="a", value="b"))).result(30)
    file = tmp_path / "fleet.zip"
    # While it is open; the other row is the project that every database has.
    assert said(capsys, "backup", str(file))["rows"] == 2
    server.close()
    assert run(["restore", str(file)]) == ExitCode.CONFLICT
    assert "--force" in capsys.readouterr().err
    with opening.writing(place, tmp_path / "data") as connection:
        connection.execute(text("UPDATE meta SET value = 'changed'"))
    assert run(["restore", str(file), "--force"]) == 0
    shown = capsys.readouterr().out.replace("\n", " ")
    assert "Restored 2 rows" in shown
    assert "files (artifacts) stay where they are" in shown
    with opening.reading(place) as connection:
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
    assert "There is no database" in capsys.readouterr().err
    assert run(["backup", str(tmp_path / "no" / "fleet.zip"), *data]) == ExitCode.MACHINE
    assert "There is no folder" in capsys.readouterr().err
    assert run(["restore", str(tmp_path / "fleet.zip"), *data]) == ExitCode.MACHINE
    assert "fleet.zip cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "data" / "tunefleet.db").exists()
