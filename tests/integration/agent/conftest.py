"""Real agent processes with real trainings, and a stub backend that speaks real HTTP."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.libraries import required
from tunefleet.runtime import locks
from tunefleet.settings import inherited_environment

Json = dict[str, Any]


def until(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.05)
    return found


@dataclass
class Call:
    method: str
    path: str
    headers: dict[str, str]
    body: Json
    status: int = 200


BATCH = "/api/training/local/metrics"
INTEGERS = ("step", "epoch", "total_steps", "sample_index")
"""Columns of the original's tables that take no fraction; a value of another type is its database's error, a 500."""


def column_fault(body: Any) -> str | None:
    """Return what the original's database says of a body that its tables cannot hold."""
    rows = [body, *(body.get("metrics") or []), *(body.get("predictions") or [])] if isinstance(body, dict) else []
    wrong = [row[name] for row in rows for name in INTEGERS if name in row and type(row[name]) is not int]
    return f'invalid input syntax for type integer: "{wrong[0]}"' if wrong else None


@dataclass
class StubBackend:
    """A stand-in for somebody's backend; `answer` says what a call gets. It can be taken down and up again.

    It knows the document's calls only, unless it takes points in batches.
    """

    port: int = 0
    calls: list[Call] = field(default_factory=list)
    answer: Callable[[Call], tuple[int, Json]] = lambda _: (200, {"success": True})
    server: http.server.ThreadingHTTPServer | None = None
    batches: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size) or b"{}")
                if stub.server is not self.server:  # taken down while the connection was open
                    self.close_connection = True
                    return
                call = Call(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                unknown = call.path == BATCH and not stub.batches
                fault = column_fault(body)
                call.status, reply = (404, {"error": "no such route"}) if unknown else stub.answer(call)
                if call.status == 200 and fault is not None and self.command != "PATCH":
                    call.status, reply = 500, {"error": fault}
                stub.calls.append(call)
                data = json.dumps(reply).encode()
                self.send_response(call.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = _any

        class Server(http.server.ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def down(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def taken(self, job_id: str, what: str) -> list[Json]:
        """The bodies of one kind that were taken for a job, in order."""
        path = f"/api/training/local/{job_id}/{what}"
        found: list[Json] = []
        for call in [call for call in list(self.calls) if call.status == 200]:
            if call.path == path:
                found.append(call.body)
            elif what == "metrics" and call.path == BATCH and call.body["job_id"] == job_id:
                found += call.body["metrics"]
        return found

    def statuses(self, job_id: str) -> list[str]:
        return [body["status"] for body in self.taken(job_id, "status")]

    def log(self, job_id: str) -> list[str]:
        return [line for body in self.taken(job_id, "logs") for line in body["logs"]]


@dataclass
class AgentProcess:
    """An agent in a process of its own."""

    folder: Path
    env: dict[str, str]
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = (self.folder / "agent.out").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tunefleet.agent"],
            cwd=self.folder,
            env={**inherited_environment(), **self.env, "PORT": str(self.port)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        until(self._answers, f"the agent answers: {self.out()[-2000:]}")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.out()
        try:
            return self.get("/health").status_code in {200, 401}
        except httpx.TransportError:
            return False

    def out(self) -> str:
        return (self.folder / "agent.out").read_text()

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=10, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return httpx.post(f"http://127.0.0.1:{self.port}{path}", json=body, timeout=10, **options)

    def status(self, job_id: str) -> Json:
        response = self.get(f"/api/training/status/{job_id}")
        assert response.status_code == 200, response.text
        found: Json = response.json()
        return found

    def until_status(self, job_id: str, *wanted: str, timeout_s: float = 60.0) -> Json:
        def reached() -> Json | None:
            found = self.status(job_id)
            ended = {"completed", "failed", "cancelled"} - set(wanted)
            assert found["status"] not in ended, (found, self.job_log(job_id)[-30:])
            return found if found["status"] in wanted else None

        found: Json = until(reached, f"{job_id} is {wanted}", timeout_s)
        return found

    def until_step(self, job_id: str, step: int) -> Json:
        def reached() -> Json | None:
            found = self.status(job_id)
            assert found["status"] in ("pending", "running"), (found, self.job_log(job_id)[-30:])
            return found if found["current_step"] >= step else None

        found: Json = until(reached, f"{job_id} is at step {step}")
        return found

    def job_log(self, job_id: str) -> list[str]:
        lines: list[str] = self.get(f"/api/training/logs/{job_id}?limit=10000").json()["logs"]
        return lines

    def job_folder(self, job_id: str) -> Path:
        return self.folder / "checkpoints" / job_id

    def trainer(self, job_id: str) -> int:
        pid: int = json.loads((self.job_folder(job_id) / "process.json").read_text())["pid"]
        return pid

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()

    def clean(self) -> None:
        self.stop()
        for lock in (self.folder / "checkpoints").glob("*/lock"):
            for pid in locks.holders(lock):
                os.kill(pid, signal.SIGKILL)


ROWS = 40
CONFIG: Json = {
    "model": {"name": "builtin:gsm8k-llama-2m"},
    "tokenizer": {"name": "builtin:gsm8k-llama-2m"},
    "training": {
        "method": "sft",
        "use_lora": True,
        "max_steps": 8,
        "batch_size": 1,
        "learning_rate": 1e-3,
        "warmup_steps": 0,
        "logging_steps": 1,
        "max_length": 64,
        "lora_config": {"r": 2, "lora_alpha": 4, "lora_dropout": 0.0, "target_modules": ["q_proj"]},
    },
    "data": {},
}


def request(job_id: str, dataset: str = "rows.jsonl", **training: Any) -> Json:
    config = json.loads(json.dumps(CONFIG))
    config["training"] |= training
    return {
        "config": config,
        "dataset_path": dataset,
        "execution_id": job_id,
        "name": f"the {job_id}",
        "user_id": "user-1",
        "access_token": "session",
        "job_token": f"token-of-{job_id}",
    }


def write_rows(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"What is {n} + {n}?", "response": f"It is {2 * n}."} for n in range(ROWS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def backend() -> Iterator[StubBackend]:
    stub = StubBackend()
    stub.up()
    yield stub
    stub.down()


@pytest.fixture(scope="module")
def agent(
    tmp_path_factory: pytest.TempPathFactory, backend: StubBackend, free_port: Callable[[], int]
) -> Iterator[AgentProcess]:
    """An agent with one place that reports to the stub backend."""
    required("torch")
    folder = tmp_path_factory.mktemp("agent")
    write_rows(folder / "datasets")
    env = {"BACKEND_URL": backend.url, "TUNEFLEET_HOME": str(folder / "home"), "HEARTBEAT_INTERVAL_SECONDS": "1"}
    found = AgentProcess(folder, env, free_port())
    found.start()
    yield found
    found.clean()


def plain(line: str) -> str:
    """A line of a log without its time."""
    assert re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ", line), line
    return line[22:]
