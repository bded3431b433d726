"""A secret through a whole fleet of real processes: the worker uses it, and nobody writes it down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = pytest.mark.proof

VALUE = "a-value-that-nobody-else-has"
ECHO = """apiVersion: tunefleet/v1
metadata: {name: hello}
spec: {taskType: echo, data: {type: list, items: ["key ${secret:TOKEN}", "$${secret:TOKEN}"]}}
"""


@dataclass
class Heard:
    """A service of somebody's, and the bodies that it was sent."""

    port: int
    bodies: list[bytes]


@pytest.fixture
def listening() -> Iterator[Callable[[], Heard]]:
    with ExitStack() as stack:

        def start() -> Heard:
            bodies: list[bytes] = []

            class Service(BaseHTTPRequestHandler):
                def do_POST(self) -> None:
                    bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                    self.send_response(204)
                    self.end_headers()

            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Service))
            Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            return Heard(server.server_port, bodies)

        yield start


def test_a_secret_is_used_and_never_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int]
) -> None:
    monkeypatch.setenv("TUNEFLEET_SECRET_TOKEN", VALUE)
    quiet = {"TUNEFLEET_WARM_START": "false"}
    data = tmp_path / "data"
    fleet = LocalFleet(data, port=free_port(), environment=quiet, save_client=False)
    with fleet, Client(fleet.url, fleet.key) as client:
        run = client.submit(ECHO)
        done = run.wait(timeout_s=60)
        worker = client.workers.list().items[0]
        assert "TOKEN" in worker.capabilities.secrets
        assert done.status == "completed"
        texts = [each["output"] for each in (done.result or {})["result"]["items"]]
        # The executor echoes what it was given; on its way back the value gave way to the name.
        assert texts == ["key ${secret:TOKEN}", "${secret:TOKEN}"]
    files = [path for path in data.rglob("*") if path.is_file()]
    assert any(path.name.startswith("tunefleet.db") for path in files)
    for path in files:
        assert VALUE.encode() not in path.read_bytes(), path


CALL = """apiVersion: tunefleet/v1
metadata: {name: call}
spec: {taskType: api, api: {url: "http://127.0.0.1:PORT/x", method: POST, json: {key: "${secret:SENT}"}, retries: 0}}
"""


def test_a_secret_goes_where_its_machine_lets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int], listening: Callable[[], Heard]
) -> None:
    right, wrong = listening(), listening()
    limits = tmp_path / "limits.yaml"
    limits.write_text(f"TOKEN: {{projects: [vision]}}\nSENT: {{hosts: ['127.0.0.1:{right.port}']}}\n")
    monkeypatch.setenv("TUNEFLEET_SECRET_TOKEN", VALUE)
    monkeypatch.setenv("TUNEFLEET_SECRET_SENT", "another-value")
    quiet = {"TUNEFLEET_SECRETS_LIMITS": str(limits), "TUNEFLEET_URL_ALLOW": "127.0.0.1"}
    fleet = LocalFleet(tmp_path / "data", port=free_port(), environment=quiet, save_client=False)
    with fleet, Client(fleet.url, fleet.key) as client:
        client.projects.create("vision")
        of_vision = client.keys.create("somebody", project="vision").secret
        waits = client.submit(ECHO)
        calls = [client.submit(CALL.replace("PORT", str(each.port))) for each in (right, wrong)]
        with Client(fleet.url, of_vision) as other:
            assert other.submit(ECHO).wait(timeout_s=120).status == "completed"
        assert client.workers.list().items[0].capabilities.secrets == ("SENT", "TOKEN@vision")
        assert calls[0].wait(timeout_s=120).status == "completed"
        assert b"another-value" in right.bodies[0]
        refused = calls[1].wait(timeout_s=120)
        assert (refused.status, refused.reason) == ("failed", "bad_input")
        assert "spec.api.json.key: this machine's secret SENT may not be sent to 127.0.0.1" in str(refused.error)
        assert wrong.bodies == []
        told = client.tasks.why(waits.task_id)
        assert told.status == "queued"
        assert "keeps the secret TOKEN for other projects" in str(told.why)
