"""A provider that bills each task that it creates, over real HTTP; it knows no idempotency, as a real one may not.

A task is created, and billed, as the request arrives; the answer comes later: whoever asked may be dead by then.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.listening import listening


@dataclass
class Billing:
    """What was created and billed.

    Args:
        answer_s: How long the answer to a creation takes.
        looks: How often a task is seen running before it has succeeded.
    """

    answer_s: float = 0.1
    looks: int = 2
    url: str = ""
    tasks: list[dict[str, Any]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            task = {"id": f"billed-{len(self.tasks)}", **body}
            self.tasks.append(task)
            return task

    def look(self, task_id: str) -> dict[str, Any]:
        with self.lock:
            self.seen[task_id] = self.seen.get(task_id, 0) + 1
            over = self.seen[task_id] > self.looks
        return {"id": task_id, "status": "success" if over else "training"}

    def find(self, key: str) -> list[str]:
        with self.lock:
            return [task["id"] for task in self.tasks if task["key"] == key]


@contextmanager
def billing(**how: Any) -> Iterator[Billing]:
    """Serve one on loopback."""
    state = Billing(**how)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            task = state.create(body)
            time.sleep(state.answer_s)
            self._answer(task)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.query:
                self._answer(state.find(parse_qs(parts.query)["key"][0]))
            else:
                self._answer(state.look(parts.path.rpartition("/")[2]))

        def do_DELETE(self) -> None:
            state.cancelled.append(self.path.rpartition("/")[2])
            self._answer({})

        def _answer(self, value: Any) -> None:
            data = json.dumps(value).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except ConnectionError:
                return  # whoever asked was killed

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with listening(Handler) as state.url:
        yield state
