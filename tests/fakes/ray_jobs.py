"""A Ray dashboard's Jobs API over real HTTP: jobs whose state a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.fakes.listening import listening

TOKEN = "ray-token-0123456789"


@dataclass
class Jobs:
    """What was submitted, and what is said of each.

    Args:
        refusal: A status and a text that every request gets instead.
        between: Whether somebody else submits each job between our question and our request.
        cut: Set when the other side has hung up before it had all of an answer.
    """

    url: str = ""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    packages: dict[str, bytes] = field(default_factory=dict)
    pinned: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    refusal: tuple[int, str] | None = None
    between: bool = False
    cut: threading.Event = field(default_factory=threading.Event)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        self.asked.append(f"{method} {path}")
        if self.refusal is not None:
            return self.refusal
        if path.startswith("/api/packages/gcs/"):
            return self._package(method, path.removeprefix("/api/packages/gcs/"), body)
        name, _, verb = path.removeprefix("/api/jobs/").partition("/")
        if (method, name) == ("POST", ""):
            return self._submit(json.loads(body))
        if name not in self.jobs:
            return 404, f"Job {name} does not exist"
        return self._job(method, name, verb)

    def _package(self, method: str, package: str, body: bytes) -> tuple[int, Any]:
        if method == "PUT":
            self.packages[package] = body
        else:
            self.pinned.append(package)
        return (200, "") if package in self.packages else (404, "does not exist")

    def _submit(self, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["submission_id"]
        if self.between or name in self.jobs:
            return 400, f"Traceback\nValueError: Job with submission_id {name} already exists."
        self.jobs[name] = {"status": "PENDING", "message": "Job has not started yet.", **body}
        return 200, {"job_id": name, "submission_id": name}

    def _job(self, method: str, name: str, verb: str) -> tuple[int, Any]:
        if verb == "logs":
            return 200, {"logs": self.logs.get(name, "")}
        if verb == "stop":
            self.jobs[name]["status"] = "STOPPED"
            return 200, {"stopped": True}
        if method == "DELETE":
            del self.jobs[name]
            return 200, {"deleted": True}
        return 200, self.jobs[name]


@contextmanager
def ray_jobs() -> Iterator[Jobs]:
    """Serve the API on loopback."""
    jobs = Jobs()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            sent = self.headers.get("Authorization")
            if sent is None:
                status, answer = 401, "Unauthorized: Missing authentication token"
            elif sent != f"Bearer {TOKEN}":
                status, answer = 403, "Forbidden: Invalid authentication token"
            else:
                status, answer = jobs.answer(self.command, self.path, body)
            text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            try:
                self.wfile.write(text)
            except ConnectionError:
                jobs.cut.set()
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = _do

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with listening(Handler) as jobs.url:
        yield jobs
