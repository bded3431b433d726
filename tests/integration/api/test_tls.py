"""HTTPS by settings: a server, a fleet on one machine and an agent as processes, and a proxy before a server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.fakes.authority import Authority, Pair
from tests.integration.api.support import Running
from tunefleet.certificate import Certificate
from tunefleet.client import AsyncClient
from tunefleet.errors import UnreachableError

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]
PATIENCE_S = 90.0
TUNEFLEET = str(Path(sys.executable).with_name("tunefleet"))
ECHO = """apiVersion: tunefleet/v1
metadata: {name: hello}
spec: {taskType: echo, data: {type: list, items: [a]}}
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], None]) -> Authority:
    if shutil.which("openssl") is None:
        missing("openssl")
    return Authority(tmp_path_factory.mktemp("ca"))


def until(condition: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@contextmanager
def process(log: Path, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        started = subprocess.Popen(arguments, env={**os.environ, **variables}, cwd=log.parent, stdout=out, stderr=out)
    try:
        yield started
    finally:
        if started.poll() is None:
            started.terminate()
        started.wait(60)


def shown(port: int, context: ssl.SSLContext, name: str = "127.0.0.1") -> str:
    """The first name of the certificate that whoever listens shows."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=name) as wrapped,
    ):
        found = wrapped.getpeercert() or {}
        return str(found["subjectAltName"][0][1])


async def test_a_server_serves_https_takes_up_a_new_certificate_and_reaches_itself(
    tmp_path: Path, authority: Authority, free_port: Callable[[], int]
) -> None:
    first = authority.sign("first", "fleet.example.org", "127.0.0.1")
    second = authority.sign("second", "renewed.example.org", "127.0.0.1")
    live = Pair(tmp_path / "live.pem", tmp_path / "live.key")
    shutil.copy(first.cert, live.cert)
    shutil.copy(first.key, live.key)
    port, log, data = free_port(), tmp_path / "log", tmp_path / "data"
    url, context = f"https://127.0.0.1:{port}", ssl.create_default_context(cafile=authority.file)
    command = [sys.executable, "-m", "tunefleet.api", "--data", str(data), "--port", str(port)]
    with process(log, *command, **live.variables) as server:
        until(lambda: "Tunefleet" in log.read_text() and _answers(f"{url}/healthz", context), server, log)
        assert f"at {url}, data in" in log.read_text()

        key = (data / "keys/admin.key").read_text().strip()
        with httpx.Client(base_url=url, verify=context, headers={"Origin": url}) as browser:
            reply = browser.post("/api/v1/session", json={"key": key})
            assert reply.status_code == 201
            assert "secure" in reply.headers["set-cookie"].lower().split("; ")
            assert reply.headers["strict-transport-security"] == "max-age=31536000"
            assert browser.get("/api/v1/info").json()["authenticated"]
            code = browser.post("/api/v1/login-codes", headers={"Authorization": f"Bearer {key}"}).json()
            assert code["url"].startswith(f"{url}/login#")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/healthz")

        # As its campaigns do: they trust its own certificate alone, whatever name that is for.
        async with AsyncClient(
            url, key, patience_s=PATIENCE_S, trust=Certificate(first.cert, first.key).trust
        ) as client:
            assert (await client.info()).authenticated
        async with AsyncClient(url, key, patience_s=0.0, trust=Certificate(second.cert, second.key).trust) as client:
            with pytest.raises(UnreachableError):
                await client.info()

        assert shown(port, context) == "fleet.example.org"
        shutil.copy(second.cert, live.cert)
        shutil.copy(second.key, live.key)
        server.send_signal(signal.SIGHUP)
        until(lambda: shown(port, context) == "renewed.example.org", server, log)
        here = {**os.environ, **live.variables, "TUNEFLEET_PORT": str(port)}
        asked = [sys.executable, "-m", "tunefleet.api.health"]
        assert subprocess.run(asked, env=here, check=False).returncode == 0
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    assert "Traceback" not in log.read_text()
    assert subprocess.run(asked, env=here, check=False).returncode == 1


def _answers(url: str, context: ssl.SSLContext) -> bool:
    try:
        return httpx.get(url, verify=context, timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def test_a_fleet_on_one_machine_works_over_https(
    tmp_path: Path, authority: Authority, free_port: Callable[[], int]
) -> None:
    # Not 127.0.0.1: to that address no setting of the environment changes what is trusted.
    pair, port, log = authority.sign("up", "127.0.0.2"), free_port(), tmp_path / "log"
    variables = {
        **pair.variables, "SSL_CERT_FILE": str(authority.file), "TUNEFLEET_HOME": str(tmp_path / "home"),
        "TUNEFLEET_WARM_START": "false",
    }  # fmt: skip
    (tmp_path / "echo.yaml").write_text(ECHO)
    command = [TUNEFLEET, "up", "--json", "--data", str(tmp_path / "data"), "--host", "127.0.0.2"]
    with process(log, *command, "--port", str(port), **variables) as fleet:
        until(lambda: "login_url" in log.read_text(), fleet, log)
        told = json.loads(log.read_text()[log.read_text().index("{") :])
        assert told["url"] == f"https://127.0.0.2:{port}"
        assert told["login_url"].startswith(told["url"])
        done = subprocess.run(
            [TUNEFLEET, "submit", "echo.yaml", "--wait"], cwd=tmp_path,
            env={**os.environ, **variables}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_an_agent_serves_https(tmp_path: Path, authority: Authority, free_port: Callable[[], int]) -> None:
    pair, port, log = authority.sign("agent", "127.0.0.1"), free_port(), tmp_path / "log"
    variables = {
        **pair.variables, "BACKEND_URL": "none", "AGENT_KEY": "k" * 20, "PORT": str(port),
        "TUNEFLEET_WARM_START": "false", "TUNEFLEET_HOME": str(tmp_path / "home"),
    }  # fmt: skip
    context = ssl.create_default_context(cafile=authority.file)
    url = f"https://127.0.0.1:{port}/health"
    with process(log, sys.executable, "-m", "tunefleet.agent", **variables) as agent:
        until(lambda: f"at https://127.0.0.1:{port}" in log.read_text(), agent, log)
        until(lambda: _asked(url, context) == 200, agent, log)
        assert _asked(url, context, key=None) == 401
    broken = subprocess.run(
        [sys.executable, "-m", "tunefleet.agent"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, **variables, "TUNEFLEET_TLS_KEY_FILE": str(tmp_path / "nowhere.key")},
    )  # fmt: skip
    assert broken.returncode == 1
    assert "nowhere.key cannot be read" in broken.stderr
    assert "Traceback" not in broken.stderr


def _asked(url: str, context: ssl.SSLContext, key: str | None = "k" * 20) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        return httpx.get(url, verify=context, headers=headers, timeout=30).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.parametrize("trusted", [True, False])
def test_what_a_proxy_says_counts_if_it_is_trusted(
    tmp_path: Path, start: Callable[..., Running], trusted: bool
) -> None:
    proxies = ("127.0.0.0/8",) if trusted else ("192.0.2.7",)
    served = start(tmp_path / "data", trusted_proxies=proxies)
    said = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9", "Host": "fleet.example.org"}
    with httpx.Client(base_url=served.url, headers=said) as through:
        own = {"Origin": "https://fleet.example.org"}
        reply = through.post("/api/v1/session", json={"key": served.admin_key}, headers=own)
        assert reply.status_code == 201
        assert ("Secure" in reply.headers["set-cookie"].split("; ")) is trusted
        assert ("strict-transport-security" in reply.headers) is trusted
        code = through.post("/api/v1/login-codes", headers={"X-API-Key": served.admin_key}).json()
        assert code["url"].startswith(f"{'https' if trusted else 'http'}://fleet.example.org/login#")
        local = through.get("/healthz", headers={"Host": "localhost:8000"})
        assert "strict-transport-security" not in local.headers, "it would count for every port of localhost"
    served.stop()
    served.core.close()
