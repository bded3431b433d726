"""Worker processes with the test executor, and what they are asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefleet.schemas.api import TaskDetail

if TYPE_CHECKING:
    from tests.contract.transport.conftest import Site

REPOSITORY = Path(__file__).resolve().parents[3]
PATIENCE_S = 90.0


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)
    return found


def ask(*prompts: str) -> str:
    spec = {"taskType": "inference", "model": {"source": {"identifier": "tiny"}}}
    spec["data"] = {"type": "list", "items": list(prompts)}
    return json.dumps({"apiVersion": "tunefleet/v1", "metadata": {"name": "ask"}, "spec": spec})


class Workers:
    """Starts worker processes with the test executor."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.made: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, **more: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, "PYTHONPATH": str(REPOSITORY), "WORKER_ID": name, "RESULTS_DIR": str(self.folder / name),
            "ORCHESTRATOR_BASE_URL": self.site.url, "TUNEFLEET_WORKER_KEY": self.site.worker_key,
            "TUNEFLEET_HOME": str(self.folder / "home"), "TUNEFLEET_WARM_START": "false", **more,
        }  # fmt: skip
        if self.site.redis is not None:
            environment["REDIS_URL"] = self.site.redis.url
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "tests.fakes.together"]
            self.made.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.folder))
        until(lambda: self.status(name) == "online", f"the start of {name}")
        return self.made[-1]

    def status(self, name: str) -> str | None:
        found = {worker.id: worker.status for worker in self.site.client.workers.list().items}
        return found.get(name)

    def close(self) -> None:
        for process in self.made:
            if process.poll() is None:
                process.terminate()
            process.wait(30)


def ended(site: Site, task_id: str) -> TaskDetail:
    final = {"completed", "failed", "cancelled"}
    until(lambda: site.client.tasks.get(task_id).status in final, f"the end of {task_id}")
    return site.client.tasks.get(task_id)


def outputs(task: TaskDetail) -> list[str]:
    assert task.result is not None, task.error
    return [item["output"] for item in task.result["result"]["items"]]
