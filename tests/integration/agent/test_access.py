"""Who is answered, and what a request may name: over real HTTP, without a training."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.agent.conftest import AgentProcess, request, until, write_rows

pytestmark = pytest.mark.proof

OPEN = {"BACKEND_URL": "none", "TUNEFLEET_WARM_START": "false"}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[AgentProcess]:
    """An agent without a key."""
    folder = tmp_path_factory.mktemp("bare")
    write_rows(folder / "datasets")
    found = AgentProcess(folder, {**OPEN, "TUNEFLEET_HOME": str(folder / "home")}, free_port())
    found.start()
    yield found
    found.clean()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_without_a_key_only_programs_of_this_machine_are_answered(
    bare: AgentProcess, headers: dict[str, str], status: int
) -> None:
    assert bare.get("/health", headers=headers).status_code == status
    assert bare.post("/api/training/cancel/x", headers=headers).status_code == (400 if status == 200 else status)


def test_no_other_origin_is_allowed(bare: AgentProcess) -> None:
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = httpx.options(f"http://127.0.0.1:{bare.port}/api/training/execute", headers=asked)
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_another_user_of_this_machine_is_not_answered(bare: AgentProcess, as_root: None) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # what follows must not raise into the test's own process
        try:
            os.setuid(65534)
            with socket.create_connection(("127.0.0.1", bare.port), timeout=10) as sock:
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                os.write(writer, sock.recv(100))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert answer.startswith(b"HTTP/1.1 401")


def test_with_a_key_everybody_needs_it(tmp_path: Path, free_port: Callable[[], int]) -> None:
    env = {**OPEN, "TUNEFLEET_HOME": str(tmp_path / "home"), "AGENT_KEY": "open-sesame", "HOST": "0.0.0.0"}
    agent = AgentProcess(tmp_path, env, free_port())
    agent._answers = lambda: f":{agent.port}" in agent.out()  # type: ignore[method-assign]
    agent.start()
    try:
        assert agent.get("/health").status_code == 401
        assert agent.get("/health", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert agent.get("/health", headers={"Authorization": "Bearer open-sesame"}).status_code == 200
        assert agent.get("/health", headers={"X-API-Key": "open-sesame", "Host": "gpu-box"}).status_code == 200
        log = (tmp_path / "logs" / "agent.log").read_text()
        assert "open-sesame" not in log + agent.out()
    finally:
        agent.clean()


def test_an_open_address_without_a_key_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, HOST="0.0.0.0")
    assert "AGENT_KEY" in said
    assert "HOST=0.0.0.0" in said


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("AGENT_ID", "agent_0123456789abcdef # mine", "comment"),
        ("AGENT_ID", "me", "AGENT_ID"),
        ("GPU_MEMORY_FRACTION", "1.5", "GPU_MEMORY_FRACTION"),
        ("MAX_CONCURRENT_JOBS", "0", "MAX_CONCURRENT_JOBS"),
        ("LOG_LEVEL", "LOUD", "LOG_LEVEL"),
        ("TUNEFLEET_LOG_SINK", "carrier-pigeon://x", "TUNEFLEET_LOG_SINK"),
    ],
)
def test_a_bad_setting_stops_the_start_and_is_named(tmp_path: Path, name: str, value: str, words: str) -> None:
    assert words in refused(tmp_path, **{name: value})


def refused(folder: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tunefleet.agent"],
        cwd=folder, env={**os.environ, "TUNEFLEET_HOME": str(folder / "home"), **env},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_what_a_request_may_name(bare: AgentProcess) -> None:
    secret = bare.folder / "secret.jsonl"
    secret.write_text('{"text": "x"}\n')
    (bare.folder / "datasets" / "link.jsonl").symlink_to(secret)
    for path in (str(secret), "../secret.jsonl", "/etc/passwd", "/etc/not-there", "link.jsonl"):
        answer = bare.post("/api/training/execute", request("x", path))
        assert answer.status_code == 403, path
        assert "DATASETS_DIR" in answer.json()["detail"]
    for path, words in [
        ("nothing.jsonl", "DATASETS_DIR"),
        ("s3://bucket/rows.jsonl", "s3fs"),
        ("ftp://host/rows.jsonl", "ftp"),
    ]:
        answer = bare.post("/api/training/execute", request("x", path))
        assert (answer.status_code, words in answer.json()["detail"]) == (422, True), answer.text
    body = request("x")
    body["config"]["model"]["name"] = body["config"]["tokenizer"]["name"] = "/srv/model"
    assert "MODELS_DIR" in bare.post("/api/training/execute", body).json()["detail"]
    assert bare.get("/api/training/jobs").json() == {"jobs": []}, "nothing was begun"


def test_a_wrong_request_names_its_fields(bare: AgentProcess) -> None:
    body = request("x")
    del body["job_token"]
    answer = bare.post("/api/training/execute", body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "job_token"]
    answer = bare.post("/api/training/execute", request("x", method="rlhf", batch_size=0))
    assert answer.status_code == 422
    assert {tuple(fault["loc"]) for fault in answer.json()["detail"]} == {
        ("body", "config", "training", "method"),
        ("body", "config", "training", "batch_size"),
    }
    assert bare.post("/api/training/execute", request("../x")).status_code == 422
    assert "session" not in bare.post("/api/training/execute", body).text, "tokens are not sent back"


def test_a_body_is_bounded_and_strict_json(bare: AgentProcess) -> None:
    def sent(body: bytes) -> httpx.Response:
        url = f"http://127.0.0.1:{bare.port}/api/training/execute"
        return httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=10)

    assert sent(b'{"config": "' + b"x" * (5 << 20) + b'"}').status_code == 413
    rate = json.dumps(request("x", learning_rate=0.125)).encode()
    for number in (b"NaN", b"-Infinity", b"1e999"):
        answer = sent(rate.replace(b"0.125", number))
        assert answer.status_code == 422, (number, answer.text)
    assert sent(b"[" * 100_000).status_code == 422
    assert bare.get("/api/training/jobs").json() == {"jobs": []}


def test_the_second_port_is_taken_and_said_when_the_first_is_in_use(tmp_path: Path) -> None:
    with socket.socket() as first, socket.socket() as second:
        try:
            first.bind(("127.0.0.1", 8000))
            first.listen()
            second.bind(("127.0.0.1", 8001))
        except OSError:
            pytest.skip("port 8000 or 8001 is in use here")
        second.close()
        agent = AgentProcess(tmp_path, {**OPEN, "TUNEFLEET_HOME": str(tmp_path / "home")}, 8001)
        environment = {name: value for name, value in {**os.environ, **agent.env}.items() if name != "PORT"}
        with (tmp_path / "agent.out").open("wb") as out:
            agent.process = subprocess.Popen(
                [sys.executable, "-m", "tunefleet.agent"], cwd=tmp_path, env=environment, stderr=out
            )
        try:
            until(agent._answers, "it answers on 8001")
            assert "Port 8000 is in use and TUNEFLEET_AGENT_PORT is not set" in agent.out()
        finally:
            agent.clean()


def test_verbs_of_the_agent_itself(bare: AgentProcess) -> None:
    found = bare.post("/api/agent/commands", {"command": "collect-diagnostics"}).json()
    assert found["state"] == "applied"
    assert found["data"]["capabilities"]["executors"]
    assert found["data"]["settings"]["key"] == "not set"
    assert bare.post("/api/agent/commands", {"command": "rm -rf"}).status_code == 422
    answer = bare.post("/api/agent/commands", {"command": "upgrade", "data": {"version": "1; rm -rf /"}})
    assert answer.status_code == 422
    assert bare.post("/api/agent/commands", {"command": "upgrade"}).status_code == 409, "a source tree stays"

    answer = bare.post("/api/agent/commands", {"command": "update-config", "data": {"settings": {"AGENT_KEY": "x"}}})
    assert (answer.status_code, "cannot be changed" in answer.json()["detail"]) == (422, True)
    wrong = bare.post("/api/agent/commands", {"command": "update-config", "data": {"MAX_CONCURRENT_JOBS": "many"}})
    assert wrong.status_code == 507
    changed = bare.post("/api/agent/commands", {"command": "update-config", "data": {"MAX_CONCURRENT_JOBS": 3}})
    assert changed.json()["state"] == "applied"
    assert bare.process is not None
    pid = bare.process.pid
    until(lambda: bare.out().count("Tunefleet agent") == 2, "it has restarted")
    until(bare._answers, "it answers again")
    assert bare.process.pid == pid, "whoever started it keeps it"
    found = bare.post("/api/agent/commands", {"command": "collect-diagnostics"}).json()
    assert found["data"]["settings"]["max_jobs"] == "3"
    assert (bare.folder / "home" / "agent.env").stat().st_mode & 0o077 == 0
