"""What is decided about workers, and equal tasks as one run: real worker processes over every link."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.links.conftest import ECHO, Site
from tunefleet.client import Client
from tunefleet.wire.api import TaskDetail

pytestmark = pytest.mark.slow
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

    def start(self, name: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, "PYTHONPATH": str(REPOSITORY), "WORKER_ID": name, "RESULTS_DIR": str(self.folder / name),
            "ORCHESTRATOR_BASE_URL": self.site.url, "TUNEFLEET_WORKER_KEY": self.site.worker_key,
            "TUNEFLEET_HOME": str(self.folder / "home"), "TUNEFLEET_WARM_START": "false",
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


@pytest.fixture
def workers(site: Site, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(site, tmp_path)
    yield made
    made.close()
    for worker in site.client.workers.list().items:
        site.client.workers.cordon(worker.id)  # it is gone, and must not be offered what the next test submits


def ended(site: Site, task_id: str) -> TaskDetail:
    final = {"completed", "failed", "cancelled"}
    until(lambda: site.client.tasks.get(task_id).status in final, f"the end of {task_id}")
    return site.client.tasks.get(task_id)


def outputs(task: TaskDetail) -> list[str]:
    assert task.result is not None, task.error
    return [item["output"] for item in task.result["result"]["items"]]


def computed(task: TaskDetail) -> int:
    """How many prompts its run has computed."""
    assert task.result is not None, task.error
    return int(task.result["result"]["usage"]["computed"])


def test_fault_33_equal_tasks_run_as_one_and_everybody_gets_their_own(
    site: Site, workers: Workers, tmp_path: Path
) -> None:
    bob_key = site.client.keys.create("bob", "member").secret
    first = site.client.submit(ask("one", "same")).task_id
    second = site.client.submit(ask("same", "two")).task_id
    lost = site.client.submit(ask("forget")).task_id
    with Client(site.url, bob_key) as bob:
        theirs = bob.submit(ask("same")).task_id
    workers.start("merger")
    done = {task_id: ended(site, task_id) for task_id in (first, second, lost, theirs)}
    assert outputs(done[first]) == ["ONE", "SAME"]
    assert outputs(done[second]) == ["SAME", "TWO"]
    assert (done[second].merged_into, done[first].merged_into, done[theirs].merged_into) == (first, None, None)
    # `same` was computed once for both of them; what bob asked was computed for bob.
    assert computed(done[first]) == 4
    assert outputs(done[theirs]) == ["SAME"]
    assert computed(done[theirs]) == 1
    # Who was forgotten has failed by name, and its next try ran by itself or with nobody who forgot it.
    assert "returned no result" in (done[lost].attempt_list[0].error or "")
    folder = tmp_path / "merger" / second
    assert json.loads((folder / "responses.json").read_text())["items"][1]["output"] == "TWO"
    assert json.loads((folder / "manifest.json").read_text())["task_id"] == second
    names = {file.name: file for file in site.client.artifacts.list(task_id=second).items}
    assert "answers.txt" in names


def test_a_drained_worker_finishes_leaves_and_is_offline(site: Site, workers: Workers, tmp_path: Path) -> None:
    process = workers.start("drained")
    gate = tmp_path / "gate"
    running = site.client.submit(ask(f"wait:{gate}")).task_id
    until(lambda: site.client.tasks.get(running).status == "running", "the start of the task")
    assert site.client.workers.drain("drained").draining
    later = site.client.submit(ECHO).task_id
    assert "is drained" in (site.client.tasks.get(later).why or "")
    assert process.poll() is None
    gate.touch()
    assert ended(site, running).status == "completed"
    assert process.wait(PATIENCE_S) == 0
    view = site.client.workers.get("drained")
    assert (view.status, view.draining, view.cordoned) == ("offline", False, True)
    site.client.tasks.cancel(later)


def test_a_drain_that_is_taken_back_leaves_the_worker_at_work(site: Site, workers: Workers, tmp_path: Path) -> None:
    process = workers.start("stays")
    gate = tmp_path / "gate"
    running = site.client.submit(ask(f"wait:{gate}")).task_id
    until(lambda: site.client.tasks.get(running).status == "running", "the start of the task")
    site.client.workers.drain("stays")
    assert not site.client.workers.uncordon("stays").draining
    gate.touch()
    assert ended(site, running).status == "completed"
    assert ended(site, site.client.submit(ECHO).task_id).status == "completed"
    assert process.poll() is None


def test_fault_30_a_task_calls_back_the_worker_that_alone_can_run_it(site: Site, workers: Workers) -> None:
    workers.start("rests")
    assert site.client.workers.elastic("rests", enabled=False).elastic_disabled
    assert ended(site, site.client.submit(ECHO).task_id).status == "completed"
    assert not site.client.workers.get("rests").elastic_disabled
