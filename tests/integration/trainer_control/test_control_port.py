"""The control port over a real socket: who may ask, what a browser may not, what is answered."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tunefleet.schemas.control import CommandState, ControlReply, Endpoint
from tunefleet.trainer_control.control import control_server
from tunefleet.trainer_control.control.command_queue import CommandQueue
from tunefleet.trainer_control.control.control_server import MAX_BODY_BYTES, ControlServer
from tunefleet.trainer_control.journal.status import StatusFile

OUTCOMES = ("taken", "refused", "it broke")
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def status(tmp_path: Path) -> StatusFile:
    return StatusFile(tmp_path)


@pytest.fixture
def server(tmp_path: Path, status: StatusFile) -> Iterator[ControlServer]:
    server = ControlServer("task-1", CommandQueue(), status, tmp_path / "jobs", job_folder=tmp_path)
    server.start()
    yield server
    server.stop()


def call(
    server: ControlServer, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, payload, headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def command(server: ControlServer, name: str, **headers: str) -> tuple[int, dict[str, Any]]:
    return call(server, "POST", "/jobs/task-1/control", {"command": name}, {**JSON, **headers})


def test_a_command_is_acknowledged_and_its_outcome_can_be_asked_for(server: ControlServer) -> None:
    code, body = command(server, "save_checkpoint")
    reply = ControlReply.model_validate(body)
    assert (code, reply.command, reply.status) == (200, "save_checkpoint", "acknowledged")
    path = f"/jobs/task-1/commands/{reply.command_id}"
    assert CommandState.model_validate(call(server, "GET", path)[1]).state == "pending"
    server.board.take()
    server.board.applied(reply.command_id, 7, saving=True)
    server.board.durable(reply.command_id, "checkpoint-7")
    state = CommandState.model_validate(call(server, "GET", path)[1])
    assert (state.state, state.step, state.checkpoint) == ("durable", 7, "checkpoint-7")


def test_the_documents_fifth_command_is_acknowledged_and_does_nothing(server: ControlServer) -> None:
    code, body = command(server, "status")
    assert (code, body["message"]) == (200, "Command status queued for execution")
    assert not server.board.armed
    assert call(server, "GET", f"/jobs/task-1/commands/{body['command_id']}")[1]["state"] == "applied"
    known = {"graceful_stop", "save_checkpoint", "save_and_stop", "status", "abort"}
    assert known <= set(command(server, "explode")[1]["valid_commands"])


def test_the_same_id_is_the_same_command(server: ControlServer) -> None:
    body = {"command": "graceful_stop", "command_id": "cmd-1"}
    for _ in range(2):
        assert call(server, "POST", "/jobs/task-1/control", body, JSON)[0] == 200
    assert len(server.board.take()) == 1


def test_the_status_has_the_documents_fields_and_ours(server: ControlServer, status: StatusFile) -> None:
    status.write(state="running", phase="training", step=3, max_steps=9)
    status.update(values={"loss": 1.5, "epoch": 0.5})
    code, body = call(server, "GET", "/jobs/task-1/status")
    assert code == 200
    assert {"job_id": "task-1", "status": "running", "global_step": 3, "max_steps": 9}.items() <= body.items()
    assert (body["loss"], body["epoch"], body["phase"]) == (1.5, 0.5, "training")


def test_the_job_is_listed_without_its_token(server: ControlServer) -> None:
    (job,) = call(server, "GET", "/jobs")[1]["jobs"]
    assert (job["job_id"], job["port"]) == ("task-1", server.port)
    assert "token" not in job


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "expected"),
    [
        ("GET", "/jobs/task-2/status", None, {}, 404),
        ("GET", "/nothing", None, {}, 404),
        ("GET", "/jobs/task-1/commands/cmd-x", None, {}, 404),
        ("GET", "/jobs/task-1/control", None, {}, 405),
        ("POST", "/jobs/task-1/status", {}, JSON, 405),
        ("POST", "/jobs/task-1/control", {"command": "explode"}, JSON, 400),
        ("POST", "/jobs/task-1/control", {"command": 3}, JSON, 400),
        ("POST", "/jobs/task-1/control", {"command": "set"}, JSON, 400),
        ("POST", "/jobs/task-1/control", {"command": "set", "data": {"seed": 1}}, JSON, 400),
        ("POST", "/jobs/task-1/control", {"command": "set", "data": {"save_steps": 1.5}}, JSON, 400),
        ("POST", "/jobs/task-1/control", b'{"command": "abort", "data": {"x": NaN}}', JSON, 400),
        ("OPTIONS", "/jobs/task-1/control", None, {}, 405),
        ("DELETE", "/jobs/task-1/control", None, {}, 405),
        ("POST", "/jobs/task-1/control", {"command": "abort", "data": []}, JSON, 200),
        ("POST", "/jobs/task-1/control", {"command": "abort", "data": [1]}, JSON, 400),
        ("POST", "/jobs/task-1/control", [], JSON, 400),
        ("POST", "/jobs/task-1/control", b"{", JSON, 400),
        ("POST", "/jobs/task-1/control", b"[" * 60_000, JSON, 400),
        ("POST", "/jobs/task-1/control", {"command": "set", "data": {"learning_rate": 10**400}}, JSON, 400),
        ("POST", "/jobs/task-1/control", b"x" * (MAX_BODY_BYTES + 1), JSON, 413),
        ("POST", "/jobs/task-1/control", {"command": "abort"}, {"Content-Type": "text/plain"}, 415),
        ("POST", "/jobs/task-1/control", {"command": "abort"}, {}, 415),
        ("GET", "/jobs", None, {"Host": "evil.example"}, 403),
        ("GET", "/jobs", None, {"Host": "127.0.0.1.evil.example:80"}, 403),
        ("GET", "/jobs", None, {"Host": "localhost:1"}, 200),
        ("GET", "/jobs", None, {"Host": "[::1]:1"}, 200),
        ("GET", "/jobs", None, {"Origin": "http://localhost"}, 403),
        ("GET", "/jobs", None, {"Origin": "null"}, 403),
        ("GET", "/jobs", None, {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", "/jobs", None, {"Sec-Fetch-Site": "same-site"}, 403),
        ("GET", "/jobs", None, {"Sec-Fetch-Site": "none"}, 200),
        ("GET", "/jobs", None, {"Authorization": "Bearer wrong"}, 401),
        ("GET", "/jobs", None, {"Authorization": "Basic dGVzdDp0ZXN0"}, 401),
    ],
)
def test_what_is_refused(
    server: ControlServer, method: str, path: str, body: Any, headers: dict[str, str], expected: int
) -> None:
    assert call(server, method, path, body, headers)[0] == expected


def test_a_refused_command_does_nothing(server: ControlServer) -> None:
    command(server, "abort", Origin="http://evil.example")
    command(server, "abort", Host="evil.example")
    assert not server.board.armed


def test_a_length_is_needed(server: ControlServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        head = "POST /jobs/task-1/control HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 411 ")


def test_after_the_training_a_command_is_refused_with_the_reason(server: ControlServer) -> None:
    server.board.close("training had ended")
    assert command(server, "graceful_stop") == (409, {"error": "training had ended"})


def test_an_unknown_user_needs_the_token(server: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunefleet.trainer_control.control.control_server.peer_uid", lambda *_: None)
    assert command(server, "graceful_stop")[0] == 401
    assert command(server, "graceful_stop", Authorization=f"Bearer {server.token}")[0] == 200
    assert command(server, "graceful_stop", Authorization=f"bearer {server.token}x")[0] == 401


@pytest.mark.usefixtures("as_root")
def test_another_user_of_the_machine_needs_the_token(server: ControlServer) -> None:
    def ask(headers: dict[str, str]) -> str:
        """Send a command as nobody; the interpreter may lie where nobody cannot start it, so this one is forked."""
        if (pid := os.fork()) == 0:
            outcome = "it broke"
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                outcome = {200: "taken", 401: "refused"}[command(server, "graceful_stop", **headers)[0]]
            finally:
                os._exit(OUTCOMES.index(outcome))
        return OUTCOMES[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]

    assert ask({}) == "refused"
    assert not server.board.armed
    assert ask({"Authorization": f"Bearer {server.token}"}) == "taken"
    assert server.board.armed


def test_the_kernel_names_the_user_of_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = listener.getsockname()
        with socket.create_connection(ours), listener.accept()[0] as accepted:
            assert control_server.peer_uid(accepted.getpeername(), accepted.getsockname()) == os.geteuid()
        assert control_server.peer_uid(("127.0.0.1", 1), ours) is None


def test_without_a_token_everybody_on_the_machine_may(tmp_path: Path, status: StatusFile) -> None:
    server = ControlServer("task-1", CommandQueue(), status, tmp_path / "jobs", token=None)
    server.start()
    try:
        endpoint = Endpoint.model_validate_json((tmp_path / "jobs/task-1/endpoint.json").read_text())
        assert endpoint.token is None
        assert call(server, "GET", "/jobs")[0] == 200
    finally:
        server.stop()


def test_it_listens_on_loopback_only_and_goes_when_it_is_stopped(tmp_path: Path, status: StatusFile) -> None:
    server = ControlServer("task-1", CommandQueue(), status, tmp_path / "jobs", host="0.0.0.0")
    server.start()
    server.start()
    port = server.port
    assert server._server is not None
    assert server._server.server_address[0] == "127.0.0.1"
    server.stop()
    server.stop()
    assert not (tmp_path / "jobs/task-1").exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10)


def test_a_taken_port_is_an_error_and_leaves_no_endpoint(tmp_path: Path, status: StatusFile) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = ControlServer("task-1", CommandQueue(), status, tmp_path / "jobs", port=other.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            server.start()
    assert not (tmp_path / "jobs/task-1").exists()


def test_a_silent_client_does_not_hold_up_the_others(server: ControlServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        assert call(server, "GET", "/jobs/task-1/status")[0] == 200
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):  # it has not been given up: the answer did not wait for that
            silent.recv(1)


def test_a_length_of_thousands_of_digits_is_answered(server: ControlServer) -> None:
    head = (
        b"POST /jobs/task-1/control HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
        sock.sendall(head + b"9" * 5000 + b"\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 413")
