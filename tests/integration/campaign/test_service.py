"""The shipped unit: systemd takes it, and what it starts is the daemon, in the folder of the campaigns."""

from __future__ import annotations

import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.machine import machine_environment

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]

UNIT = "tunefleet-campaign.service"
RESTING = """\
resting:
  enabled: false
  provider: local
  model_repo: builtin:gsm8k-llama-2m
  datasets: [{path: "builtin:gsm8k", field_instruction: question, field_output: answer}]
awake:
  enabled: true
  provider: local
  model_repo: builtin:gsm8k-llama-2m
  datasets: [{path: "builtin:gsm8k", field_instruction: question, field_output: answer}]
"""


@pytest.fixture
def unit(tmp_path: Path, repository: Path) -> Path:
    """The unit in a home where Tunefleet and the campaigns lie as it says."""
    command = tmp_path / "tunefleet" / ".venv" / "bin" / "tunefleet"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable.replace("python", "tunefleet"))} "$@"\n')
    command.chmod(0o755)
    (tmp_path / "campaigns").mkdir()
    text = (repository / "examples" / "campaign" / UNIT).read_text()
    unit = tmp_path / UNIT
    unit.write_text(text.replace("%h", str(tmp_path)))
    return unit


def test_systemd_takes_the_unit_and_ends_the_daemon_alone(unit: Path, missing: Callable[[str], None]) -> None:
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if unit.name in line] == [], done.stderr
    assert "\nKillMode=process\n" in unit.read_text()


def test_what_it_starts_is_the_daemon_and_it_ends_at_once_when_it_is_told_to(
    unit: Path, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    lines = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line and line[0] != "#")
    folder = Path(lines["WorkingDirectory"])
    port = free_port()
    (folder / "config.yaml").write_text(RESTING)
    (folder / ".env").write_text(
        f"TUNEFLEET_HOME={tmp_path / 'home'}\nTUNEFLEET_PORT={port}\nTUNEFLEET_WARM_START=false\n"
    )
    clean = machine_environment(HOME=str(tmp_path), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    said = tmp_path / "said.txt"
    with said.open("wb") as out:
        daemon = subprocess.Popen(shlex.split(lines["ExecStart"]), cwd=folder, env=clean, stderr=out)
    try:
        deadline = time.monotonic() + 120
        while " - awake - INFO [cycle 0, data] " not in said.read_text():
            assert daemon.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.1)
    finally:
        daemon.send_signal(signal.SIGTERM)
        ended = daemon.wait(120)
    assert ended == 0, said.read_text()
    assert "resting is not enabled." in said.read_text()
    with socket.socket() as asked:
        assert asked.connect_ex(("127.0.0.1", port)), "its server is gone with it"
