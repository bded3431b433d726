"""`python -m tunefleet.api` as a process: how it starts, what it costs, and what keeps it from starting."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fakes.receiver import receiving
from tunefleet.api.process import main
from tunefleet.client import Client
from tunefleet.errors import StoreError
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.settings import ServerSettings, load

pytestmark = pytest.mark.proof

START_S = 100.0
"""A server that starts imports a lot, which a busy machine does slowly."""


def command(data: Path, port: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "tunefleet.api", "--data", str(data), "--port", str(port), *more]


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/v1/healthz", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def server(data: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command(data, port), stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + START_S
        while not answers(port):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Start a server that cannot start, in this process; return its one sentence."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def run(data: Path, port: int, *more: str) -> str:
        assert main(["--data", str(data), "--port", str(port), *more]) == 1
        printed = capsys.readouterr().err
        assert "Traceback" not in printed
        return next(line for line in printed.splitlines() if line.startswith("error: "))

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)


def test_start_serve_stop(tmp_path: Path, free_port: Callable[[], int]) -> None:
    port = free_port()
    with server(tmp_path / "data", port) as process:
        key = (tmp_path / "data/keys/admin.key").read_text().strip()
        assert (tmp_path / "data/keys/admin.key").stat().st_mode & 0o777 == 0o600
        reply = httpx.get(f"http://127.0.0.1:{port}/api/v1/info", headers={"X-API-Key": key})
        assert reply.json()["role"] == "admin"
        assert psutil.Process(process.pid).memory_info().rss < 150 << 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None
        log = process.stderr.read()
    assert f"http://127.0.0.1:{port}" in log
    assert "Traceback" not in log
    assert key not in log


def test_the_log_has_no_address_of_a_channel(
    tmp_path: Path, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A webhook's path is a secret; the client library tells every request that it makes."""
    monkeypatch.setenv("TUNEFLEET_URL_ALLOW", "127.0.0.1")
    monkeypatch.setenv("LOG_LEVEL", "DEBUG")
    port = free_port()
    with receiving() as receiver, server(tmp_path / "data", port) as process:
        key = (tmp_path / "data/keys/admin.key").read_text().strip()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", headers={"X-API-Key": key}, timeout=60) as client:
            channel = {"name": "team", "to": f"{receiver.url}/services/T0/hush"}
            assert client.post("/notifications/channels", json=channel).status_code == 201
            assert client.post("/notifications/channels/team/test").json()["sent"] is True
            receiver.status = 500
            assert client.post("/notifications/channels/team/test").json()["sent"] is False
        assert [seen.path for seen in receiver.seen] == ["/services/T0/hush"] * 2
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert f"http://127.0.0.1:{port}" in log
    assert "hush" not in log


@pytest.mark.timeout(300)
def test_killed_server_starts_again_on_its_data(tmp_path: Path, free_port: Callable[[], int]) -> None:
    port = free_port()
    with server(tmp_path / "data", port):
        key = (tmp_path / "data/keys/admin.key").read_text()
    with server(tmp_path / "data", port):
        assert (tmp_path / "data/keys/admin.key").read_text() == key


def test_taken_port_names_its_owner_and_the_way_out(tmp_path: Path, refused: Callable[..., str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = refused(tmp_path / "data", port)
    assert str(port) in message
    assert str(os.getpid()) in message
    assert "--port" in message


def test_second_server_on_one_data_folder_names_the_first(
    tmp_path: Path, free_port: Callable[[], int], refused: Callable[..., str]
) -> None:
    port = free_port()
    with server(tmp_path / "data", port) as first:
        message = refused(tmp_path / "data", free_port())
        assert str(first.pid) in message
        assert str(tmp_path / "data") in message
        assert answers(port)


def test_a_second_server_on_a_database_is_refused(
    tmp_path: Path, free_port: Callable[[], int], refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, one, link = free_port(), tmp_path / "one.db", tmp_path / "link.db"
    monkeypatch.setenv("TUNEFLEET_DATABASE_URL", f"sqlite:///{one}")
    with server(tmp_path / "a", port) as first:
        link.symlink_to(one)
        for name in (one, link):
            monkeypatch.setenv("TUNEFLEET_DATABASE_URL", f"sqlite:///{name}")
            message = refused(tmp_path / "b", free_port())
            for words in (str(one), f"process {first.pid}", str(tmp_path / "a"), "TUNEFLEET_DATABASE_URL"):
                assert words in message
        assert answers(port)
        # The database in another server's folder is no other.
        monkeypatch.delenv("TUNEFLEET_DATABASE_URL")
        with server(tmp_path / "c", free_port()) as third:
            monkeypatch.setenv("TUNEFLEET_DATABASE_URL", f"sqlite:///{tmp_path / 'c' / 'tunefleet.db'}")
            assert f"process {third.pid}" in refused(tmp_path / "b", free_port())
    monkeypatch.setenv("TUNEFLEET_DATABASE_URL", f"sqlite:///{one}")
    with pytest.raises(StoreError, match="or the bucket named here"):
        open_context(load(ServerSettings, data=tmp_path / "b"))
    open_context(load(ServerSettings, data=tmp_path / "a")).close()


def test_corrupt_database_is_said_and_left_alone(tmp_path: Path, refused: Callable[..., str]) -> None:
    data = tmp_path / "data"
    open_context(load(ServerSettings, data=data)).close()
    database = next(path for path in data.iterdir() if path.suffix in {".db", ".sqlite", ".sqlite3"})
    for extra in data.glob(f"{database.name}-*"):
        extra.unlink()
    rubbish = b"SQLite format 3\0" + os.urandom(4096)
    database.write_bytes(rubbish)
    message = refused(data, 0)
    assert str(database) in message
    assert database.read_bytes() == rubbish


@pytest.mark.parametrize(
    ("revision", "named", "resolution"),
    [
        ("9999", "newer version of Tunefleet (revision 9999", "Upgrade Tunefleet, or use another data folder"),
        ("0072", "development version of Tunefleet (revision 0072)", "Start with an empty data folder or database"),
    ],
)
def test_database_of_another_version(
    tmp_path: Path, refused: Callable[..., str], revision: str, named: str, resolution: str
) -> None:
    data = tmp_path / "data"
    open_context(load(ServerSettings, data=data)).close()
    with closing(sqlite3.connect(data / "tunefleet.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        connection.commit()
        before = list(connection.iterdump())
        message = refused(data, 0)
        assert f"{data / 'tunefleet.db'} was created by a {named}" in message
        assert resolution in message
        assert list(connection.iterdump()) == before


def test_data_folder_that_is_a_file(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "data").write_text("not a folder")
    assert str(tmp_path / "data") in refused(tmp_path / "data", 0)


@pytest.mark.parametrize(
    ("more", "env", "named"),
    [
        (["--host", "no-such-host.invalid"], {}, "no-such-host.invalid"),
        (["--host", "192.0.2.1"], {}, "192.0.2.1"),
        ([], {"LOG_LEVEL": "LOUD"}, "LOUD"),
        ([], {"TUNEFLEET_LOST_AFTER_S": "soon"}, "TUNEFLEET_LOST_AFTER_S"),
        ([], {"TUNEFLEET_DATABASE_URL": "mysql://x/y"}, "mysql"),
    ],
)
def test_bad_settings_are_named(
    tmp_path: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    env: dict[str, str],
    named: str,
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert named in refused(tmp_path / "data", 0, *more)


@pytest.mark.story
def test_a_server_with_a_wrong_database_does_not_start_and_deletes_nothing(
    tmp_path: Path, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a typo in TUNEFLEET_DATABASE_URL, or a new database before the old one is restored."""
    monkeypatch.setenv("TUNEFLEET_GARBAGE_GRACE_S", "0")
    data, port, body = tmp_path / "data", free_port(), b"weights of a week"
    with server(data, port):
        key = (data / "keys" / "admin.key").read_text().strip()
        with Client(f"http://127.0.0.1:{port}", key) as client:
            (tmp_path / "weights.bin").write_bytes(body)
            client.data.push(tmp_path / "weights.bin", name="weights")
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.parent.name != "uploads"}
    kept = {path: content for path, content in before.items() if "blobs" in path.parts or "keys" in path.parts}
    assert body in kept.values()
    monkeypatch.setenv("TUNEFLEET_DATABASE_URL", f"sqlite:///{tmp_path / 'typo.db'}")
    ended = subprocess.run(command(data, port), capture_output=True, text=True, timeout=START_S, check=False)
    assert ended.returncode == 1
    assert "belongs to another database than" in ended.stderr
    assert "--adopt-files" in ended.stderr
    assert {path: path.read_bytes() for path in kept} == kept
    monkeypatch.delenv("TUNEFLEET_DATABASE_URL")
    with server(data, port), Client(f"http://127.0.0.1:{port}", key) as client:
        assert client.data.fetch("weights", tmp_path / "fetched").read_bytes() == body
