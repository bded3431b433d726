"""Gradients over real HTTP, built from its contract: it bills each task that it creates, and knows no idempotency key.

A task is created, and billed, as the request arrives; the answer may come late, be lost, or be an error all the same.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from tests.fakes.listening import listening

KEY = "gradients-key-0123456789"
ACCOUNT = "7d7e4f0e-6b3a-4f6f-9d0a-2f1c8f1b7a11"
_CREATE = ("/v1/tasks/create", "/v1/tasks/create_chat", "/v1/tasks/create_with_fixed_datasets")
_TASK = re.compile(r"/v1/tasks/([0-9a-f-]{36})")
_REQUIRED = {
    _CREATE[0]: {"model_repo", "ds_repo", "field_instruction", "field_output", "hours_to_complete", "file_format"},
    _CREATE[1]: {
        "model_repo", "ds_repo", "chat_template", "chat_column", "chat_role_field", "chat_content_field",
        "chat_user_reference", "chat_assistant_reference", "hours_to_complete", "file_format",
    },
    _CREATE[2]: {
        "model_repo", "training_data", "synthetic_data", "test_data", "field_instruction", "field_output",
        "hours_to_complete",
    },
}  # fmt: skip


@dataclass
class Fault:
    """Something that goes wrong, once.

    Args:
        path: What the request's path begins with.
        status: Answered instead; with `bills` the request is carried out before.
        how: `drop`: the connection is cut without an answer; `hang`: no answer comes for `seconds`.
        method: Of the request.
        bills: Whether the request is carried out all the same.
        body: Of the answer.
        seconds: How long it hangs.
        headers: Of the answer.
    """

    path: str
    status: int = 500
    how: Literal["answer", "drop", "hang"] = "answer"
    method: str = "POST"
    bills: bool = False
    body: Any = None
    seconds: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Gradients:
    """What was created and billed, and what a test may change.

    Args:
        answer_s: How long the answer to a creation takes, after it was billed.
        statuses: What a task goes through, a look each; the last one stays.
        hides: Whether the rows of a task that goes on are hidden.
        says_files: Whether it says which files a task with datasets of its own has, which its contract does not.
        hours: What `hours_to_complete` is in answers; null: as it was ordered.
    """

    answer_s: float = 0.0
    statuses: list[str] = field(default_factory=lambda: ["pending", "training", "success"])
    hides: bool = False
    says_files: bool = False
    hours: float | None = None
    url: str = ""
    tasks: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    hotkeys: list[dict[str, Any]] = field(default_factory=list)
    breakdown: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self, path: str, said: dict[str, Any]) -> tuple[int, Any]:
        lacking = sorted(key for key in _REQUIRED[path] if said.get(key) is None)
        if lacking:
            faults = [{"loc": ["body", key], "msg": "Field required", "input": said} for key in lacking]
            return 422, {"detail": faults}
        with self.lock:
            task = {"id": str(uuid.uuid4()), "path": path, "said": said, "looks": 0, "billed_at": time.time()}
            self.tasks.append(task)
        return 200, {
            "success": True, "task_id": task["id"], "created_at": "2026-01-01T10:00:00", "account_id": ACCOUNT
        }  # fmt: skip

    def state(self, task: dict[str, Any], *, look: bool) -> dict[str, Any]:
        with self.lock:
            status = self.statuses[min(task["looks"], len(self.statuses) - 1)]
            task["looks"] += look
        said, over = task["said"], status == "success" or "failure" in status
        link = said.get("ds_repo")
        return {
            "id": task["id"],
            "account_id": ACCOUNT,
            "status": status,
            "base_model_repository": said["model_repo"],
            "trained_model_repository": None,
            "ds_repo": "Hidden" if self.hides and not over else link,
            "started_at": "2026-01-01T10:00:00",
            "finished_at": "2026-01-01T11:30:00" if over else None,
            "created_at": datetime.fromtimestamp(task["billed_at"], UTC).replace(tzinfo=None).isoformat(),
            **({"training_data": said.get("training_data")} if self.says_files else {}),
            "hours_to_complete": said["hours_to_complete"] if self.hours is None else self.hours,
            "task_type": "InstructTextTask",
            "a_key_of_tomorrow": {"nobody": "knows"},
        }

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if method == "POST" and path in _CREATE:
            return self.create(path, body)
        if method == "DELETE" and path.startswith("/v1/tasks/delete/"):
            self.deleted.append(path.rpartition("/")[2])
            return 200, {"success": True}
        if path == f"/v1/tasks/account/{ACCOUNT}":
            size, page = int(query["limit"][0]), int(query["page"][0])
            newest = self.tasks[::-1][(page - 1) * size : page * size]
            return 200, [self.state(task, look=False) for task in newest]
        known = {task["id"]: task for task in self.tasks}
        task_id = path.rpartition("/")[2]
        if not path.startswith(("/v1/tasks/", "/auditing/tasks/")):
            return 404, {"detail": "Not Found"}
        if task_id not in known:
            return 404, {"detail": "Task not found."}
        if _TASK.fullmatch(path):
            return 200, self.state(known[task_id], look=True)
        if path.startswith("/auditing/tasks/"):
            return 200, {"hotkey_details": self.hotkeys}
        if path.startswith("/v1/tasks/breakdown/"):
            return 200, {"id": task_id, "miner_results": self.breakdown}
        return 404, {"detail": "Not Found"}

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            found = next((each for each in self.faults if each.method == method and path.startswith(each.path)), None)
            if found is not None:
                self.faults.remove(found)
            return found

    def count(self, method: str, path: str) -> int:
        """How many requests there were."""
        return sum(1 for sent in self.requests if sent[0] == method and sent[1].startswith(path))


@contextmanager
def gradients(**how: Any) -> Iterator[Gradients]:
    """Serve one on loopback."""
    state = Gradients(**how)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self._do("POST")

        def do_GET(self) -> None:
            self._do("GET")

        def do_DELETE(self) -> None:
            self._do("DELETE")

        def _do(self, method: str) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            state.requests.append((method, parts.path))
            if self.headers.get("Authorization") != f"Bearer {KEY}":
                self._answer(401, {"detail": "Invalid API key"})
                return
            fault = state.fault(method, parts.path)
            if fault is None or fault.bills:
                made = state.answer(method, parts.path, parse_qs(parts.query), body)
            if fault is None:
                if method == "POST":
                    time.sleep(state.answer_s)
                self._answer(*made)
            elif fault.how == "drop":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            elif fault.how == "hang":
                time.sleep(fault.seconds)
                self.close_connection = True
            else:
                self._answer(fault.status, fault.body, fault.headers)

        def _answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
            data = json.dumps(value).encode()
            try:
                self.send_response(status)
                for name, text in (headers or {}).items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except ConnectionError:
                return  # whoever asked was killed

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with listening(Handler) as state.url:
        yield state
