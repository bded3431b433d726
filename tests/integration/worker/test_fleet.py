"""`tunefleet up`: real processes, and everything that can be in their way."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.errors import MachineError
from tunefleet.runtime.environment import core_count
from tunefleet.worker.state import StateFolder

pytestmark = pytest.mark.proof

QUIET = {"TUNEFLEET_WARM_START": "false"}
ECHO = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: hello}
spec: {taskType: echo, data: {type: list, items: [a]}}
"""


class Up:
    """A `tunefleet up` as a process of its own."""

    def __init__(self, data: Path, port: int, home: Path, *options: str) -> None:
        self.home = home
        run = "from tunefleet.cli.main import main; main()"
        command = [sys.executable, "-c", run, "up", "--data", str(data), "--port", str(port), *options]
        environment = {**os.environ, **QUIET, "TUNEFLEET_HOME": str(home)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.said = ""

    def until(self, text: str) -> str:
        """Read its output until a text occurs."""
        assert self.process.stdout is not None
        while text not in self.said:
            line = self.process.stdout.readline()
            assert line, f"it ended before it said {text!r}: {self.said}"
            self.said += line
        return self.said

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Stop it and read the rest."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=30)
        self.said += rest
        return self.process.returncode


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    made: list[Up] = []

    def start(data: Path, port: int, *options: str) -> Up:
        made.append(Up(data, port, tmp_path / "home", *options))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            each.end()
        assert each.process.stdout is not None
        each.process.stdout.close()


def _gone(pids: list[int], within_s: float = 15.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _children(data: Path) -> list[int]:
    return [pid for pid, _ in json.loads((data / "up.json").read_text())["children"]]


def test_up_greets_serves_refuses_a_second_and_stops_cleanly(
    tmp_path: Path, up: Callable[..., Up], free_port: Callable[[], int]
) -> None:
    data, port = tmp_path / "data", free_port()
    first = up(data, port)
    said = first.until("Ctrl-C")
    assert f"http://127.0.0.1:{port}" in said
    assert re.search(r"log in +http://\S+/login#code=\S+", said)
    assert str(data) in said
    saved = first.home / "client.json"
    assert saved.stat().st_mode & 0o777 == 0o600
    with Client(json.loads(saved.read_text())["url"], json.loads(saved.read_text())["key"]) as client:
        assert client.submit(ECHO).wait(timeout_s=20).status == "completed"
    children = _children(data)
    assert len(children) == 2

    second = up(data, free_port())
    rest, _ = second.process.communicate(timeout=30)
    assert second.process.returncode != 0
    assert f"pid {first.process.pid}" in rest
    assert "--data" in rest
    assert "Traceback" not in rest

    assert first.end() == 0
    assert "Stopped." in first.said
    assert _gone(children)


def test_up_starts_workers_that_are_not_in_each_others_way(
    tmp_path: Path, up: Callable[..., Up], free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is one worker's own in the environment must not become the name, the folder or the log of both.
    monkeypatch.setenv("WORKER_ID", "desk")
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "results"))
    monkeypatch.setenv("TUNEFLEET_JOB_SLOTS", "2")
    data = tmp_path / "data"
    fleet = up(data, free_port(), "--workers", "2")
    assert "2 workers" in fleet.until("Ctrl-C")
    pids = _children(data)
    assert len(pids) == 3
    saved = json.loads((fleet.home / "client.json").read_text())
    with Client(saved["url"], saved["key"]) as client:
        deadline = time.monotonic() + 60
        while len(there := client.workers.list().items) < 2:
            assert time.monotonic() < deadline, [path.read_text() for path in (data / "logs").iterdir()]
            time.sleep(0.05)
        assert {worker.id: worker.capabilities.pid for worker in there} == {"desk": pids[1], "desk-2": pids[2]}
        assert client.submit(ECHO).wait(timeout_s=60).status == "completed"
    folders = [data / name for name in ("results", "results-2")]
    assert [StateFolder(folder).owner_pid for folder in folders] == pids[1:]
    threads = {int(psutil.Process(pid).environ()["TUNEFLEET_TORCH_THREADS"]) for pid in pids[1:]}
    assert threads == {max(1, core_count() // 4)}, "two workers with two slots each share the cores"
    assert fleet.end() == 0
    assert _gone(pids)


def test_a_killed_up_takes_its_children_along_and_the_next_one_takes_over(
    tmp_path: Path, up: Callable[..., Up], free_port: Callable[[], int]
) -> None:
    data, port = tmp_path / "data", free_port()
    first = up(data, port)
    first.until("Ctrl-C")
    children = _children(data)
    first.process.kill()
    first.process.wait()
    second = up(data, port)
    second.until("Ctrl-C")
    assert _gone(children, within_s=1.0), "the next one waits for the folder to be free"
    assert second.end(signal.SIGTERM) == 0


def test_a_taken_port_names_its_owner_and_the_option(tmp_path: Path, free_port: Callable[[], int]) -> None:
    before = _fleet_children()  # those of a fleet that other tests of this process share
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(MachineError) as caught:
            LocalFleet(tmp_path / "data", port=port, environment=QUIET, save_client=False).start()
    assert f"Port {port} is in use by process {os.getpid()}" in str(caught.value)
    assert "--port" in str(caught.value)
    assert _gone(sorted(_fleet_children() - before))


def _fleet_children() -> set[int]:
    return {
        child.pid
        for child in psutil.Process().children()
        if "tunefleet.cli.local_cluster.child" in " ".join(child.cmdline())
    }


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(MachineError, match=re.escape(str(blocked))):
        LocalFleet(blocked / "data", environment=QUIET, save_client=False).start()


def test_a_database_that_is_none_is_said_in_the_servers_words(tmp_path: Path, free_port: Callable[[], int]) -> None:
    (tmp_path / "tunefleet.db").write_bytes(b"no database" * 1000)
    with pytest.raises(MachineError, match=r"tunefleet\.db"):
        LocalFleet(tmp_path, port=free_port(), environment=QUIET, save_client=False).start()


def test_a_second_fleet_tells_where_it_is_in_json_and_gives_the_saved_server_back(
    tmp_path: Path, up: Callable[..., Up], free_port: Callable[[], int]
) -> None:
    home, port = tmp_path / "home", free_port()
    home.mkdir()
    before = {"url": "http://127.0.0.1:1", "key": "tf_first"}
    (home / "client.json").write_text(json.dumps(before))
    fleet = up(tmp_path / "data", port, "--json")
    told = json.loads(fleet.until("}\n"))
    assert (told["url"], told["pid"]) == (f"http://127.0.0.1:{port}", fleet.process.pid)
    assert (told["data"], told["logs"]) == (str(tmp_path / "data"), str(tmp_path / "data" / "logs"))
    assert "/login#code=" in told["login_url"]
    assert json.loads((home / "client.json").read_text())["url"] == told["url"]
    assert fleet.end() == 0
    assert json.loads(fleet.said) == told
    assert json.loads((home / "client.json").read_text()) == before


def test_the_addresses_of_database_and_mail_are_the_servers_alone(
    tmp_path: Path, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFLEET_DATABASE_URL", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    monkeypatch.setenv("TUNEFLEET_SMTP_URL", "smtp://bot:password@localhost:587")
    with LocalFleet(tmp_path / "data", port=free_port(), environment=QUIET, save_client=False) as fleet:
        given = {name: psutil.Process(fleet.pid(name)).environ() for name in ("server", "worker")}
    secret = {"TUNEFLEET_DATABASE_URL", "TUNEFLEET_SMTP_URL"}
    assert (secret & given["server"].keys(), secret & given["worker"].keys()) == (secret, set())
    assert (tmp_path / "elsewhere.db").exists()


def test_a_model_that_is_fetched_later_is_seen_with_the_next_heartbeat(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    environment = {**QUIET, "HF_HUB_CACHE": str(tmp_path / "hub"), "HEARTBEAT_INTERVAL_SEC": "0.2"}
    fleet = LocalFleet(tmp_path / "data", port=free_port(), environment=environment, save_client=False)
    with fleet, Client(fleet.url, fleet.key) as client:
        assert client.submit(ECHO).wait(timeout_s=60).status == "completed"
        (before,) = client.workers.list().items
        assert before.capabilities.cached_models == ()
        (tmp_path / "hub" / "models--org--new" / "snapshots" / "abc").mkdir(parents=True)
        deadline = time.monotonic() + 60
        while (after := client.workers.get(before.id)).capabilities.cached_models != ("org/new",):
            assert time.monotonic() < deadline, after
            time.sleep(0.05)
        assert (after.status, after.registered_at) == ("online", before.registered_at)
        assert (after.capabilities.cache_read_at or 0) > (before.capabilities.cache_read_at or 0)
        assert client.submit(ECHO).wait(timeout_s=60).status == "completed"


def test_killed_children_are_started_again_and_work_goes_on(
    tmp_path: Path, free_port: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = LocalFleet(tmp_path / "data", port=free_port(), environment=QUIET, save_client=False)
    with fleet, Client(fleet.url, fleet.key, patience_s=20) as client:
        (worker_id,) = fleet.await_workers(60)
        assert client.submit(ECHO).wait(timeout_s=20).status == "completed"
        for name in ("server", "worker"):
            before = fleet.pid(name)
            assert before is not None
            os.kill(before, signal.SIGKILL)
            deadline = time.monotonic() + 10
            while fleet.pid(name) in {before, None}:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert client.submit(ECHO).wait(timeout_s=20).status == "completed"
    told = [record.getMessage() for record in caplog.records if "restarting" in record.getMessage()]
    assert told == [
        "The server was killed (signal 9); restarting.",
        f"Worker {worker_id} was killed (signal 9); restarting.",
    ]


def test_up_says_that_it_is_up_when_its_workers_are_there(
    tmp_path: Path, home: Path, free_port: Callable[[], int]
) -> None:
    port = free_port()
    up = Up(tmp_path / "data", port, home, "--workers", "2")
    up.until("Press Ctrl-C to stop.")
    key = (tmp_path / "data" / "keys" / "admin.key").read_text().strip()
    with Client(f"http://127.0.0.1:{port}", key) as client:
        online = [worker for worker in client.workers.list().items if worker.status == "online"]
    assert "with 2 workers" in up.said or "registered after 30 s" in up.said  # a machine may be that slow
    assert len(online) == 2 or "with 2 workers" not in up.said
    assert up.end() == 0


def test_a_worker_without_a_good_key_says_so_and_ends(tmp_path: Path, free_port: Callable[[], int]) -> None:
    fleet = LocalFleet(tmp_path / "data", port=free_port(), workers=0, environment=QUIET, save_client=False)
    with fleet:
        for key, words in ((None, "has no key"), ("tf_wrong", "rejected this worker's key")):
            environment = {**os.environ, **QUIET, **({"TUNEFLEET_WORKER_KEY": key} if key else {})}
            command = [sys.executable, "-m", "tunefleet.worker", "--server", fleet.url]
            command += ["--results-dir", str(tmp_path / "results")]
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
            assert ended.returncode == 1
            assert words in ended.stderr
            assert "TUNEFLEET_WORKER_KEY" in ended.stderr
            assert "Traceback" not in ended.stderr
