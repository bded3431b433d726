"""A server with one worker that runs code, for all these tests; and what it takes to watch a task on it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import TaskDetail

PATIENCE_S = 600.0


@dataclass
class Bench:
    """The fleet, and a client of it."""

    fleet: LocalFleet
    client: Client

    def submit(self, document: Path | dict[str, Any], **overrides: Any) -> dict[str, str]:
        """Submit a document, or the spec of a single task; return the ids by name."""
        if isinstance(document, dict):
            spec = {"retry": {"max_attempts": 1}, **document}
            source: Any = json.dumps({"apiVersion": "tunefleet/v1", "metadata": {"name": "task"}, "spec": spec})
        else:
            source = document
        return {task.name: task.id for task in self.client.submit(source, overrides=overrides).workflow.tasks}

    def ended(self, task_id: str) -> TaskDetail:
        """Return a task once it has ended."""
        return self.client.tasks.wait(task_id, timeout_s=PATIENCE_S)

    def result(self, task_id: str) -> dict[str, Any]:
        """Return the result of a task once it has completed."""
        task = self.ended(task_id)
        assert task.status == "completed", (task.error, task.why, self.log(task_id))
        assert task.result is not None
        found: dict[str, Any] = task.result["result"]
        return found

    def error(self, document: dict[str, Any]) -> str:
        """Submit a task that must fail at its first try; return what it says."""
        task = self.ended(self.submit(document)["task"])
        assert (task.status, task.attempts) == ("failed", 1), task
        return task.error or ""

    def folder(self, task_id: str) -> Path:
        """The task's job folder on the worker."""
        return self.fleet.results_dir() / task_id

    def log(self, task_id: str) -> str:
        """What the task has printed."""
        path = self.folder(task_id) / "train.log"
        return path.read_text() if path.exists() else "no log"

    def files(self, task_id: str) -> dict[str, Any]:
        """The files that a task has left, by name."""
        return {each.name: each for each in self.client.tasks.files(task_id).files}

    def until(self, what: Callable[[], Any], task_id: str) -> Any:
        """Return the first true value of a look."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := what()):
            assert time.monotonic() < deadline, (self.client.tasks.get(task_id), self.log(task_id))
            time.sleep(0.05)
        return found


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[Bench]:
    """One for all tests that need no other: they look for what belongs to tasks of their own."""
    data = tmp_path_factory.mktemp("fleet")
    environment = {
        "TUNEFLEET_ALLOW_CODE": "true",
        "TUNEFLEET_WARM_START": "false",
        "TUNEFLEET_SECRET_PASSWORD": "sesame-open",
        "HF_TOKEN": "hf_of-the-worker",
        "XDG_CACHE_HOME": str(data / "cache"),
        "ENABLE_ELASTIC_SCALING": "false",
        "HF_HUB_OFFLINE": "1",
        "LOG_FILE": "",
    }
    with LocalFleet(data, port=free_port(), environment=environment, save_client=False) as fleet:
        fleet.await_workers(PATIENCE_S)
        with Client(fleet.url, fleet.key, patience_s=60) as client:
            yield Bench(fleet, client)
