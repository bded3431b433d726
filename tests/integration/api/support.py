"""What the tests of the server share: a running server, a worker that speaks the link by hand, checks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tunefleet.api import launch
from tunefleet.orchestrator.context import ServerContext

ECHO = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: hello}
spec:
  taskType: echo
  data: {type: list, items: [hello, world]}
"""


@dataclass
class Running:
    """A server that runs, and what a test needs of it."""

    url: str
    core: ServerContext
    server: launch.Server
    thread: threading.Thread
    admin_key: str
    worker_key: str

    def client(self, key: str | None = None, **options: Any) -> httpx.Client:
        headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **options.pop("headers", {})}
        return httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=60, **options)

    def stop(self) -> None:
        """Stop it as a signal would."""
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so; a minute passes only if it never will be."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@dataclass
class HandWorker:
    """A worker of one kind that does nothing by itself."""

    client: httpx.Client
    worker_id: str
    session: str = "session-1"
    slots: int = 500
    holding: list[str] = field(default_factory=list)
    kind: str = "echo"
    slot_class: str = "light"
    gpus: list[dict[str, Any]] = field(default_factory=list)

    def register(self) -> dict[str, Any]:
        reply = self.client.post(
            "/link/register",
            json={
                "worker_id": self.worker_id,
                "session": self.session,
                "state_id": f"state-{self.worker_id}",
                "holding": self.holding,
                "capabilities": {
                    "version": "0",
                    "hostname": "test",
                    "executors": [{"kind": self.kind, "slot_class": self.slot_class}],
                    "slots": {self.slot_class: self.slots},
                    "gpus": self.gpus,
                    "cpu_count": 2,
                    "memory_total_bytes": 8 << 30,
                    "memory_free_bytes": 8 << 30,
                    "disk_free_bytes": 8 << 30,
                },
            },
        )
        assert reply.status_code == 200, reply.text
        body: dict[str, Any] = reply.json()
        return body

    def exchange(self, *, wait_s: float = 0.0, **what: Any) -> dict[str, Any]:
        body = {"worker_id": self.worker_id, "session": self.session, "wait_s": wait_s, "holding": self.holding, **what}
        reply = self.client.post("/link/exchange", json=body)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    def take(self, task_id: str) -> str:
        """Accept the offer of a task and return its token."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            offers = self.exchange(wait_s=1.0, want={self.slot_class: self.slots})["offers"]
            tokens = {offer["task_id"]: offer["token"] for offer in offers}
            if task_id in tokens:
                self.holding.append(tokens[task_id])
                assert tokens[task_id] in self.exchange(accepts=[tokens[task_id]])["accepted"]
                return str(tokens[task_id])
        raise AssertionError(f"{task_id} was not offered")

    def finish(self, token: str) -> None:
        finish = {"token": token, "outcome": "completed", "reason": "finished", "result": {"ok": True}}
        assert token in self.exchange(finishes=[finish])["finished"]
        self.holding.remove(token)


def submit(client: httpx.Client, document: str = ECHO) -> str:
    """Submit a workflow of one task; returns the task's id."""
    reply = client.post("/workflows", json={"document": document})
    assert reply.status_code == 201, reply.text
    return str(reply.json()["tasks"][0]["id"])


def is_problem(reply: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that an answer is a problem of some code, and return it."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = reply.json()
    assert body["type"] == f"urn:tunefleet:error:{code}"
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    return body
