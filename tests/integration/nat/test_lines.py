"""A worker whose line is slow, breaks, and stays half open, and whose clock is a minute ahead."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.fakes.middle import Middle, middle
from tests.integration.api.support import ECHO, Running, until

MOVED = Path(__file__).parents[2] / "fakes" / "moved"
SLOW_S = 0.1


@pytest.fixture(scope="module")
def running(
    start: Callable[..., Running],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("data"), lost_after_s=6)
    yield running
    running.stop()
    running.core.close()


@pytest.fixture
def line(running: Running, tmp_path: Path) -> Iterator[Middle]:
    """What a worker reaches the server through; the worker's clock is a minute ahead."""
    (tmp_path / "clock").write_text("60")
    with middle(target=running.url.removeprefix("http://"), delay_s=SLOW_S) as found:
        environment = {
            **os.environ,
            "ORCHESTRATOR_BASE_URL": f"http://127.0.0.1:{found.port}",
            "TUNEFLEET_WORKER_KEY": running.worker_key,
            "TUNEFLEET_HOME": str(tmp_path / "home"),
            "RESULTS_DIR": str(tmp_path / "results"),
            "WORKER_ID": "far",
            "MOVED_CLOCK": str(tmp_path / "clock"),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(MOVED), os.environ.get("PYTHONPATH")))),
        }
        with (tmp_path / "worker.log").open("wb") as log:
            command = [sys.executable, "-m", "tunefleet.worker"]
            worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield found
        finally:
            worker.kill()
            worker.wait()


@pytest.mark.proof
def test_each_task_is_done_however_the_line_fails(running: Running, line: Middle) -> None:
    with running.client(running.admin_key) as client:

        def submit() -> str:
            made = client.post("/workflows", content=ECHO, headers={"Content-Type": "application/yaml"})
            return str(made.json()["tasks"][0]["id"])

        def status_of(what: str) -> str:
            found = client.get(what)
            return str(found.json()["status"]) if found.status_code == httpx.codes.OK else "unknown"

        until(lambda: status_of("/workers/far") == "online")
        tasks = [submit()]
        until(lambda: status_of(f"/tasks/{tasks[-1]}") == "completed")
        line.cut()
        tasks.append(submit())
        until(lambda: status_of(f"/tasks/{tasks[-1]}") == "completed")
        # Nobody says that these connections are gone: the worker finds out by itself, and the server does without it.
        line.strand()
        tasks.append(submit())
        until(lambda: status_of(f"/tasks/{tasks[-1]}") == "completed")
        done = [client.get(f"/tasks/{each}").json() for each in tasks]
        # An offer that went into the half-open line may count as a try; what ran, ran once.
        assert [each["attempts"] for each in done if each["id"] != tasks[2]] == [1, 1]
        assert all(each["created_at"] <= each["started_at"] <= each["finished_at"] for each in done)
