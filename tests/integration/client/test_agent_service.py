"""`tunefleet agent`: the log and the service; the service manager is a double that notes how it was called."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tunefleet.cli.workers.agent_commands import app

RUNNER = CliRunner()


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the double of systemctl notes its calls."""
    noted = tmp_path / "calls"
    manager = tmp_path / "bin" / "systemctl"
    manager.parent.mkdir()
    manager.write_text(f'#!/bin/sh\necho "$@" >> {noted}\n')
    manager.chmod(0o755)
    monkeypatch.setenv("PATH", f"{manager.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TUNEFLEET_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOGS_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.platform", "linux")
    return noted


def test_the_service_is_installed_read_stopped_and_removed(calls: Path, tmp_path: Path) -> None:
    assert RUNNER.invoke(app, ["stop"]).exit_code != 0, "it is not installed"
    assert not calls.exists()
    folder = tmp_path / "else where"
    done = RUNNER.invoke(app, ["install", "--folder", str(folder), "--set", "BACKEND_URL=none"])
    assert done.exit_code == 0, done.output
    assert RUNNER.invoke(app, ["logs"]).exit_code != 0, "there is none yet"
    (folder / "logs").mkdir()
    (folder / "logs" / "agent.log").write_text("".join(f"line {number}\n" for number in range(9)))
    assert RUNNER.invoke(app, ["logs", "-n", "2"]).output.splitlines() == ["line 7", "line 8"]
    for verb in ("status", "stop", "uninstall"):
        done = RUNNER.invoke(app, [verb])
        assert done.exit_code == 0, done.output
    unit = "tunefleet-agent.service"
    assert calls.read_text().splitlines() == [
        "--user daemon-reload",
        f"--user enable --now {unit}",
        f"--user status --no-pager {unit}",
        f"--user stop {unit}",
        f"--user disable --now {unit}",
    ]
    assert RUNNER.invoke(app, ["status"]).exit_code != 0, "it is gone"
    assert (tmp_path / "home" / "agent.env").exists(), "settings stay"
