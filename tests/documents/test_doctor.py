"""`tunefleet doctor` on set-ups that are really broken: each finding names the thing and the way out."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any

import pytest

from tests.documents.reader import Reader, Scene
from tests.fakes.authority import Authority
from tunefleet.cli.server import check_machine, checks
from tunefleet.cli.server.check_machine import Finding

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def setup(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A healthy set-up of this test alone, in which a variable can be broken."""
    monkeypatch.setenv("TUNEFLEET_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TUNEFLEET_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TUNEFLEET_KEY", "tf_none")
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def _says(found: Finding | None, state: str, thing: str, way_out: str) -> None:
    assert found is not None
    assert found.state == state, found
    assert thing in found.found
    assert way_out in (found.mend or "")


def test_a_home_that_cannot_be_written(setup: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_machine.home().state == "good"
    (tmp_path / "file").write_text("no folder")
    for place in (tmp_path / "file/home", Path("/proc/tunefleet")):  # what root may not write either
        setup.setenv("TUNEFLEET_HOME", str(place))
        _says(check_machine.home(), "bad", str(place.parent), "TUNEFLEET_HOME")


def test_a_data_folder_that_cannot_be_written(setup: pytest.MonkeyPatch) -> None:
    setup.setenv("TUNEFLEET_DATA", "/proc/self")
    _says(checks.data_folder(), "bad", "/proc/self is not writable", "chown or chmod")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_and_little_shared_memory(setup: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (small / "full").write_bytes(b"x" * (1 << 19))
        setup.setenv("TUNEFLEET_DATA", str(small))
        _says(checks.disk(), "warning", f"free at {small}", "tunefleet prune")
        _says(checks.data_folder(), "good", str(small), "")  # an empty file still fits
        setup.setattr(check_machine, "SHARED_MEMORY", small)
        _says(check_machine.shared_memory(), "warning", f"of 1.0 MiB at {small}", "--shm-size")
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize(
    ("url", "thing", "way_out"),
    [
        ("redis://127.0.0.1:1/0", "Redis at redis://127.0.0.1:1/0 does not respond", "REDIS_URL"),
        ("http://127.0.0.1:6379", "REDIS_URL", "redis://"),
        ("redis://127.0.0.1:many/0", "REDIS_URL", "redis://"),
    ],
)
def test_a_wrong_address_of_redis(setup: pytest.MonkeyPatch, url: str, thing: str, way_out: str) -> None:
    assert check_machine.redis() is None
    setup.setenv("REDIS_URL", url)
    _says(check_machine.redis(), "bad", thing, way_out)


@pytest.mark.parametrize(
    ("url", "thing", "way_out"),
    [
        ("postgresql://ada:secret@127.0.0.1:1/fleet", "127.0.0.1", "TUNEFLEET_DATABASE_URL"),
        ("mysql://127.0.0.1/fleet", "mysql", "postgresql://"),
    ],
)
def test_a_wrong_address_of_the_database(setup: pytest.MonkeyPatch, url: str, thing: str, way_out: str) -> None:
    setup.setenv("TUNEFLEET_DATABASE_URL", url)
    found = checks.database()
    _says(found, "bad", thing, way_out)
    assert "secret" not in str(found)


def test_certificates(setup: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_machine.certificate() is None
    authority = Authority(tmp_path)
    good, old = authority.sign("good", "localhost"), authority.sign("old", "localhost", expired=True)

    def serve(variables: Mapping[str, str]) -> Finding | None:
        for name, value in variables.items():
            setup.setenv(name, value)
        return check_machine.certificate()

    sound = serve(good.variables)
    assert sound is not None
    assert "localhost" in sound.found
    _says(serve(old.variables), "bad", "expired", "Renew it")
    _says(serve({**old.variables, "TUNEFLEET_TLS_KEY_FILE": str(tmp_path / "none.key")}), "bad", "none.key", "")
    setup.delenv("TUNEFLEET_TLS_KEY_FILE")
    _says(check_machine.certificate(), "bad", "TUNEFLEET_TLS_KEY_FILE is not", "Set both for TLS")


def test_a_proxy_before_the_server(setup: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        setup.delenv(name, raising=False)
    setup.setenv("HTTP_PROXY", "http://ada:secret@proxy.example.org:3128")
    assert check_machine.proxy() is None, "nobody asks a proxy for this machine"
    setup.setenv("TUNEFLEET_URL", "http://fleet.example.org:8000")
    found = check_machine.proxy()
    _says(found, "warning", "http://proxy.example.org:3128", "add fleet.example.org to NO_PROXY")
    assert "secret" not in str(found)
    setup.setenv("NO_PROXY", "fleet.example.org")
    assert check_machine.proxy() is None


@pytest.fixture
def late() -> Iterator[Callable[[float], str]]:
    """Start servers whose clock is wrong by so many seconds: a real one would need a machine of its own."""
    started = []

    def start(wrong_s: float) -> str:
        class Late(http.server.BaseHTTPRequestHandler):
            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate(time() + wrong_s, usegmt=True)

            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        started.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Late))
        threading.Thread(target=started[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{started[-1].server_port}"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def test_clocks_that_differ(setup: pytest.MonkeyPatch, late: Callable[[float], str]) -> None:
    assert check_machine.clock() is None, "no server answers"
    setup.setenv("TUNEFLEET_URL", late(0))
    _says(check_machine.clock(), "good", "in sync with the server", "")
    setup.setenv("TUNEFLEET_URL", late(3600))
    _says(check_machine.clock(), "warning", "behind http://127.0.0.1", "NTP")
    setup.setenv("TUNEFLEET_URL", late(-3600))
    _says(check_machine.clock(), "warning", "ahead of http://127.0.0.1", "NTP")


def test_a_torch_that_cannot_be_imported(setup: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As one of another CUDA or another Python: it is there, and does not load."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libcudart.so.12: cannot open it')\n")
    setup.setenv("PYTHONPATH", str(tmp_path))
    setup.setattr(checks, "find_spec", lambda name: object())
    _says(checks.gpu(), "bad", "cannot be imported", "--force-reinstall torch")


@pytest.mark.proof
def test_a_wrong_key_and_a_port_that_is_taken(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """The command itself, beside a real server: nothing but what is broken is to be mended."""
    reader = Reader(tmp_path, free_port())
    try:
        reader.type("tunefleet server", Scene(), "before")
        reader.environment |= {"TUNEFLEET_URL": reader.url, "TUNEFLEET_KEY": "tf_wrong"}
        done = subprocess.run(
            ["tunefleet", "doctor", "--json"], env=reader.environment, cwd=reader.here,
            capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
    finally:
        reader.end()
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert done.returncode == 1, done.stderr
    assert [name for name, each in found.items() if each["state"] == "bad"] == ["Server"]
    assert "rejects this key" in found["Server"]["found"]
    assert f"tunefleet login {reader.url}" in found["Server"]["mend"]
    assert "is used by Tunefleet" in found["Port"]["found"]
    assert found["Clock"]["state"] == "good"
