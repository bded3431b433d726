"""`tunefleet doctor` looks at the port of a server."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tunefleet.cli.main import run
from tunefleet.cli.server import checks


@pytest.fixture(autouse=True)
def data(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    monkeypatch.setenv("TUNEFLEET_DATA", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("TUNEFLEET_PORT", str(taken.getsockname()[1]))
        assert checks.port().found.endswith("is free")
        taken.listen()
        found = checks.port()
    assert found.state == "warning"
    assert "is in use by process" in found.found
    assert "--port" in (found.mend or "")


def test_doctor_goes_on_after_a_check_that_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "CHECKS", (checks.python, checks.port, checks.server))
    monkeypatch.setenv("TUNEFLEET_PORT", "many")
    assert run(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "TUNEFLEET_PORT" in said
    assert "problem to fix" in said or "problems to fix" in said
    monkeypatch.setenv("TUNEFLEET_PORT", "9")
    assert run(["doctor"]) == 0
    assert "1 warning." in capsys.readouterr().out
