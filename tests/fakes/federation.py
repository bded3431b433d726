"""A double of the federation's routes over real HTTP: what a worker meets, with faults on demand.

It averages nothing by itself: a test says what it publishes. Uploads count once by worker, step and digest, as on the
server.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tunefleet.schemas.api import PROBLEM_PREFIX

TOKEN = "fed-000000000001.0123456789abcdef"
FEDERATION = "fed-000000000001"
_NOW = "2026-01-01T00:00:00Z"


@dataclass
class Double:
    """What a worker did, and what it is to meet."""

    url: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    partials: dict[str, bytes] = field(default_factory=dict)
    updates: list[dict[str, Any]] = field(default_factory=list)
    announced: list[dict[str, Any]] = field(default_factory=list)
    """Every announcement, repeated ones too."""
    versions: list[tuple[bytes, dict[str, Any]]] = field(default_factory=list)
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=lambda: {"strategy": {"name": "fedavg"}})
    status: str = "running"
    away: bool = False
    """Whether every connection is dropped without an answer."""
    refuse_updates: tuple[int, str, str] | None = None
    """Status, code and text with which updates are refused."""
    refuse_all: tuple[int, str, str] | None = None
    break_uploads_after: list[int] = field(default_factory=list)
    """The next uploads break after so many bytes."""
    break_downloads_after: list[int] = field(default_factory=list)
    lose_answers: int = 0
    """So many announcements are taken, and their answers lost."""
    checking: int = 0
    """So many requests find an update, sent with its file, still being checked; its own answer is lost."""
    checked: tuple[dict[str, Any], bytes] | None = None
    rows_taken: int | None = None
    """Of its training, as a worker that joins is told."""
    let_go: set[str] = field(default_factory=set)
    """Files that were taken with their update, and are no longer held for another one."""
    received_bytes: int = 0
    """Of files, whole or in parts."""
    warning: str | None = None
    on_update: Callable[[Double, dict[str, Any]], None] | None = None
    """Called with each update that counts, in the server's thread."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def publish(self, file: bytes, config: dict[str, Any]) -> int:
        """Make a file the newest version; returns its number."""
        with self.changed:
            self.versions.append((file, config))
            self.changed.notify_all()
            return len(self.versions)

    def file_of(self, update: dict[str, Any]) -> bytes:
        """Return the weights of an update."""
        return self.blobs[update["sha256"]]

    @property
    def examples(self) -> list[tuple[int, int]]:
        """Step and weight of every update that counted."""
        return [(update["step"], update["num_examples"]) for update in self.updates]

    def view(self, number: int) -> dict[str, Any]:
        """Return a version in the wire's words."""
        file, _ = self.versions[number - 1]
        digest = hashlib.sha256(file).hexdigest()
        return {
            "version": number,
            "round": number,
            "strategy": "fedavg",
            "contributors": [],
            "num_examples": 1,
            "step": 0,
            "sha256": digest,
            "size_bytes": len(file),
            "archive_sha256": digest,
            "archive_size_bytes": len(file),
            "artifact_id": "art-1",
            "created_at": _NOW,
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    double: Double

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        double = self.double
        path, _, query = self.path.partition("?")
        double.requests.append(f"{self.command} {path}")
        if double.away:
            self._hang_up()
            return
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._problem(401, "unauthenticated", "The token is wrong.")
            return
        if double.refuse_all is not None:
            self._problem(*double.refuse_all)
            return
        below = path.removeprefix(f"/api/v1/federations/{FEDERATION}")
        if below == path:
            self._problem(404, "not_found", f"There is nothing at {path}.")
            return
        params = dict(part.split("=", 1) for part in query.split("&") if part)
        try:
            self._route(below, params)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = _serve

    def _route(self, below: str, params: dict[str, str]) -> None:
        match self.command, below.strip("/").split("/"):
            case "GET", [""]:
                self._say(self._federation())
            case "PUT", ["members", worker]:
                self.double.members[worker] = json.loads(self._body())
                self._say({"worker": worker, "joined_at": _NOW, "seen_at": _NOW, "rows_taken": self.double.rows_taken})
            case "PUT", ["blobs", digest]:
                self._blob(digest)
            case "PUT", ["updates"]:
                self._together()
            case "POST", ["updates"]:
                self._update(json.loads(self._body()))
            case "GET", ["versions", "newest"]:
                self._newest(int(params["after"]), float(params["wait_s"]))
            case "GET", ["versions", "newest", "adapter"]:
                self._newest_adapter(int(params["after"]), float(params["wait_s"]))
            case "GET", ["versions", number, "config"]:
                self._say(self.double.versions[int(number) - 1][1])
            case "GET", ["versions", number, "adapter"]:
                self._adapter(int(number))
            case "GET", ["versions", number]:
                self._say(self.double.view(int(number)))
            case _:
                self._problem(404, "not_found", f"There is no route {below}.")

    def _federation(self) -> dict[str, Any]:
        return {
            "id": FEDERATION,
            "number": 1,
            "name": "double",
            "owner": "admin",
            "status": self.double.status,
            "strategy": self.double.spec["strategy"]["name"],
            "version": len(self.double.versions),
            "created_at": _NOW,
            "spec": self.double.spec,
        }

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _blob(self, digest: str) -> None:
        double = self.double
        offset, length = int(self.headers["Upload-Offset"]), int(self.headers["Upload-Length"])
        left = int(self.headers["Content-Length"])
        if self._is_checking():
            double.received_bytes += len(self.rfile.read(left))
            self._problem(409, "conflict", "Somebody else is writing this file.")
            return
        if digest in double.blobs and digest not in double.let_go:
            double.received_bytes += len(self.rfile.read(left))
            self._say({"cursor": length}, 201)
            return
        have = double.partials.get(digest, b"")
        if offset != len(have):
            double.received_bytes += len(self.rfile.read(left))
            self._problem(409, "offset_conflict", "Wrong offset.", cursor=len(have))
            return
        limit = double.break_uploads_after.pop(0) if left and double.break_uploads_after else None
        part = self.rfile.read(left if limit is None else min(limit, left))
        have += part
        double.received_bytes += len(part)
        double.partials[digest] = have
        if limit is not None:
            self._hang_up()
            return
        if len(have) == length:
            assert hashlib.sha256(have).hexdigest() == digest, "what arrived is damaged"
            double.blobs[digest] = have
        self._say({"cursor": len(have)}, 201 if len(have) == length else 202)

    def _together(self) -> None:
        double, told = self.double, int(self.headers["Update-Length"])
        body = json.loads(self.rfile.read(told))
        left = int(self.headers["Content-Length"]) - told
        limit = double.break_uploads_after.pop(0) if double.break_uploads_after else None
        file = self.rfile.read(left if limit is None else min(limit, left))
        double.received_bytes += len(file)
        if limit is not None:
            double.partials[body["sha256"]] = file
            self._hang_up()
            return
        assert hashlib.sha256(file).hexdigest() == body["sha256"], "what arrived is damaged"
        if double.checking:
            double.checked = (body, file)
            self._hang_up()
            return
        double.blobs[body["sha256"]] = file
        self._update(body)

    def _is_checking(self) -> bool:
        """Whether an update is still being checked; after so many questions it counts."""
        double = self.double
        if double.checked is None:
            return False
        if double.checking:
            double.checking -= 1
            return True
        body, file = double.checked
        double.checked = None
        double.blobs[body["sha256"]] = file
        double.let_go.add(body["sha256"])
        double.updates.append(body)
        return False

    def _update(self, body: dict[str, Any]) -> None:
        double = self.double
        checking = self._is_checking()
        if double.refuse_updates is None and (checking or body["sha256"] not in double.blobs):
            self._problem(422, "artifact_invalid", "The file was not uploaded to this federation.")
            return
        double.announced.append(body)
        if double.refuse_updates is not None:
            self._problem(*double.refuse_updates)
            return
        same = [
            number
            for number, known in enumerate(double.updates, start=1)
            if all(known[key] == body[key] for key in ("worker", "step", "sha256"))
        ]
        if not same:
            double.updates.append(body)
            if double.on_update is not None:
                double.on_update(double, body)
        if double.lose_answers > 0:
            double.lose_answers -= 1
            self._hang_up()
            return
        number = same[0] if same else len(double.updates)
        reply = {"id": number, "counted": double.warning is None, "should_aggregate": False}
        self._say({**reply, "round": 1, "version": len(double.versions), "warning": double.warning})

    def _newer(self, after: int, wait_s: float) -> int | None:
        """Wait for a version; says so itself if there is none."""
        double, until = self.double, time.monotonic() + wait_s
        with double.changed:
            double.changed.wait_for(lambda: len(double.versions) > after or double.away, until - time.monotonic())
            number = len(double.versions)
        if not double.away and number > after:
            return number
        if double.away:
            self._hang_up()
        else:
            self._say(None, 204)
        return None

    def _newest(self, after: int, wait_s: float) -> None:
        number = self._newer(after, wait_s)
        if number is not None:
            self._say(self.double.view(number))

    def _newest_adapter(self, after: int, wait_s: float) -> None:
        number = self._newer(after, wait_s)
        if number is not None:
            content, config = self.double.versions[number - 1]
            digest = hashlib.sha256(json.dumps(config).encode()).hexdigest()
            told = {"Version": number, "Round": number, "Config-Digest": digest}
            self._adapter(number, {**told, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'})

    def _adapter(self, number: int, told: Mapping[str, Any] = MappingProxyType({})) -> None:
        content = self.double.versions[number - 1][0]
        span = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        rest = content[int(span[1]) :] if span else content
        limit = self.double.break_downloads_after.pop(0) if self.double.break_downloads_after else None
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(rest)))
        for name, value in told.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(rest if limit is None else rest[:limit])
        if limit is not None:
            self._hang_up()

    def _say(self, body: Any, status: int = 200, kind: str = "application/json") -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _problem(self, status: int, code: str, detail: str, **more: Any) -> None:
        body = {"type": PROBLEM_PREFIX + code, "title": code, "status": status, "detail": detail, **more}
        # What was sent and not read would be taken for the next request.
        self.close_connection = True
        self._say(body, status, "application/problem+json")

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that broke, which is what they are here for."""


@contextmanager
def serving() -> Iterator[Double]:
    """Serve while the body runs."""
    double = Double()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"double": double}))
    double.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield double
    finally:
        with double.changed:
            double.away = True
            double.changed.notify_all()
        server.shutdown()
        server.server_close()
        thread.join()
