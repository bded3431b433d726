"""The systemd units: systemd takes them, and what they start works as they say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.deploy.described import DEPLOY, REPOSITORY, unit, variables
from tests.machine import machine_environment
from tunefleet.client import Client
from tunefleet.settings import AgentSettings, ServerSettings, WorkerSettings

COMMAND = "/usr/local/lib/tunefleet/bin/tunefleet"
HERE = str(Path(sys.executable).with_name("tunefleet"))
UNITS = {"server": ServerSettings, "worker": WorkerSettings, "agent": AgentSettings}
PATIENCE_S = 90.0


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_it(name: str, tmp_path: Path, missing: Callable[[str], None]) -> None:
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze")
    path = tmp_path / f"tunefleet-{name}.service"
    path.write_text((DEPLOY / "systemd" / path.name).read_text().replace(COMMAND, HERE))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if path.name in line] == [], done.stderr


@pytest.mark.parametrize(("name", "cls"), UNITS.items())
def test_it_gives_what_the_process_reads_and_keeps_jobs_alive(name: str, cls: type[ServerSettings]) -> None:
    told = unit(f"tunefleet-{name}.service")
    given = {part.split("=")[0] for part in " ".join(told["Environment"]).split()}
    assert given <= variables(cls) | {"HF_HOME"}, given
    assert told["ExecStart"] == [f"{COMMAND} {name}"]
    assert told["Restart"] == ["always"]
    assert told["StateDirectory"] == [f"tunefleet/{name}"]
    if name != "server":
        assert (told["KillMode"], told["OOMPolicy"]) == (["process"], ["continue"])
        assert "PrivateTmp" not in told, "the next one finds the jobs by files there"


def test_the_agents_command_says_how_it_is_called_and_starts_none() -> None:
    (command,) = unit("tunefleet-agent.service")["ExecStart"]
    asked = [HERE, *shlex.split(command)[1:], "--help"]
    shown = subprocess.run(
        asked, env={**os.environ, "PATH": str(Path(HERE).parent)}, capture_output=True, text=True, check=False
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Usage: tunefleet agent" in shown.stdout


@contextmanager
def service(name: str, state: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run what a unit starts, as the unit says."""
    told = unit(f"tunefleet-{name}.service")
    folders = {"%S": str(state), "%C": str(state / "cache")}
    own = dict(part.split("=", 1) for part in " ".join(told["Environment"]).split())
    filled = {key: re.sub("%[SC]", lambda found: folders[found[0]], value) for key, value in own.items()}
    folder = Path(re.sub("%S", str(state), told["WorkingDirectory"][0]))
    folder.mkdir(parents=True, mode=0o700)
    environment = machine_environment(**{"PYTHONPATH": str(REPOSITORY / "src"), **filled, **variables})
    with (state / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(
            [HERE, *shlex.split(told["ExecStart"][0])[1:]],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield started
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0, (state / f"{name}.log").read_text()
    finally:
        if started.poll() is None:
            started.kill()
            started.wait()


@pytest.mark.proof
@pytest.mark.timeout(240)
def test_server_and_worker_meet_and_systemd_is_told(tmp_path: Path, free_port: Callable[[], int]) -> None:
    port, told = free_port(), tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(told))
        notify.settimeout(PATIENCE_S)
        with service("server", tmp_path, TUNEFLEET_PORT=str(port), NOTIFY_SOCKET=str(told)):
            assert notify.recv(100) == b"READY=1"
            keys = tmp_path / "tunefleet/server/keys"
            url, key = f"http://127.0.0.1:{port}", (keys / "worker.key").read_text().strip()
            meets = {"ORCHESTRATOR_BASE_URL": url, "TUNEFLEET_WORKER_KEY": key, "TUNEFLEET_WARM_START": "false"}
            with (
                Client(url, (keys / "admin.key").read_text().strip()) as client,
                service("worker", tmp_path, **meets),
            ):
                deadline = time.monotonic() + PATIENCE_S
                while not [each for each in client.workers.list().items if each.status == "online"]:
                    assert time.monotonic() < deadline, (tmp_path / "worker.log").read_text()
                    time.sleep(0.05)
        assert notify.recv(100) == b"STOPPING=1"
