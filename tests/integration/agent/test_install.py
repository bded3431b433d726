"""The installer up to the unit file; the file is verified, and what it starts is started by hand."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.integration.agent.conftest import until
from tests.machine import machine_environment
from tunefleet.agent.service import Service

pytestmark = pytest.mark.proof


def test_the_installer_writes_a_unit_that_systemd_takes_and_that_starts_an_agent(
    tmp_path: Path, repository: Path, free_port: Callable[[], int], missing: Callable[[str], None]
) -> None:
    port = free_port()
    env = {
        **os.environ,
        "HOME": str(tmp_path),
        "TUNEFLEET_HOME": str(tmp_path / "my home"),
        "INSTALL_DIR": str(tmp_path / "100% agent"),
        "TUNEFLEET_VENV": str(Path(sys.executable).parent.parent),
        "PYTHON_BIN": sys.executable,
        "BACKEND_URL": "none",
        "PORT": str(port),
        "MAX_CONCURRENT_JOBS": "2",
    }
    done = subprocess.run(
        [str(repository / "scripts" / "install.sh"), "--no-start"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    unit = tmp_path / ".config" / "systemd" / "user" / "tunefleet-agent.service"
    settings = tmp_path / "my home" / "agent.env"
    assert settings.stat().st_mode & 0o077 == 0, "it holds keys"
    written = dict(line.split("=", 1) for line in settings.read_text().splitlines())
    assert (written["MAX_CONCURRENT_JOBS"], written["PORT"]) == ("2", str(port))
    assert "KillMode=process" in unit.read_text()

    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze")
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in verified.stderr.splitlines() if unit.name in line]
    assert not complaints, verified.stderr

    lines = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line)
    home = shlex.split(lines["Environment"])[0].replace("%%", "%").split("=", 1)[1]
    clean = machine_environment(HOME=str(tmp_path), TUNEFLEET_HOME=home, TUNEFLEET_WARM_START="false")
    folder = Path(lines["WorkingDirectory"].replace("%%", "%"))
    with (tmp_path / "out").open("wb") as out:
        agent = subprocess.Popen(
            shlex.split(lines["ExecStart"].replace("%%", "%")), cwd=folder, env=clean, stdout=out, stderr=out
        )
    try:
        headers = {"Authorization": f"Bearer {written['TUNEFLEET_AGENT_KEY']}"}

        def answers() -> bool:
            assert agent.poll() is None, (tmp_path / "out").read_text()
            try:
                return httpx.get(f"http://127.0.0.1:{port}/health", headers=headers).status_code == 200
            except httpx.TransportError:
                return False

        until(answers, "it answers")
        assert (folder / "checkpoints").is_dir()
        assert "POLL" not in (tmp_path / "out").read_text()
    finally:
        agent.terminate()
        assert agent.wait(20) == 0


def test_settings_stay_when_it_is_installed_again(tmp_path: Path) -> None:
    service = Service(home=tmp_path, folder=tmp_path / "agent", platform="linux", user_home=tmp_path)
    service.install(["API_KEY=one", "PORT=1"])
    first = service.env_file.read_text()
    service.install(["PORT=2"])
    lines = service.env_file.read_text().splitlines()
    assert "API_KEY=one" in lines
    assert "PORT=2" in lines
    assert [line for line in first.splitlines() if "AGENT_KEY" in line] == [
        line for line in lines if "AGENT_KEY" in line
    ]
    assert service.uninstall() == [service.definition]
    assert service.env_file.exists()


def test_the_launchd_file_says_the_same(tmp_path: Path) -> None:
    service = Service(home=tmp_path, folder=tmp_path / "agent", platform="darwin", user_home=tmp_path)
    service.install()
    found = plistlib.loads(service.definition.read_bytes())
    assert found["ProgramArguments"] == [sys.executable, "-m", "tunefleet.agent"]
    assert found["AbandonProcessGroup"] is True, "jobs outlive the agent"
    assert service.commands("start")[0][:2] == ["launchctl", "load"]
