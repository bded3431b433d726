"""Workers that somebody starts on a Ray cluster with the command line: they come for tasks, run them, and leave."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.ways import NODES_COMMAND
from tests.integration.ray.cluster import PYTHON, RayCluster
from tests.machine import machine_environment
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.heavy, pytest.mark.proof, pytest.mark.timeout(300)]

PROGRAM = Path(sys.executable).with_name("tunefleet")
PATIENCE_S = 120.0
QUIET = {"LOG_FILE": "", "TUNEFLEET_WARM_START": "false"}
ECHO = """apiVersion: tunefleet/v1
metadata: {name: echo}
spec: {taskType: echo, data: {type: list, items: [a]}}
"""
ON_GPU = ECHO.replace("taskType: echo", "taskType: echo, resources: {hardware: {gpu: {count: 1}}}")


@pytest.fixture(scope="module")
def fleet(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    data = tmp_path_factory.mktemp("plain") / "data"
    with LocalFleet(data, port=free_port(), workers=0, environment=QUIET, save_client=False) as fleet:
        yield fleet


def _until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


def test_a_worker_comes_when_a_task_waits_that_it_can_run_and_leaves_when_it_is_told(
    fleet: LocalFleet, ray_cluster: Callable[..., RayCluster], tmp_path: Path
) -> None:
    ray = ray_cluster()
    environment = {
        **machine_environment(**QUIET),
        "TUNEFLEET_HOME": str(tmp_path / "home"),
        "TUNEFLEET_KEY": fleet.key,
        "TUNEFLEET_WORKER_KEY": (fleet.data / "keys" / "worker.key").read_text().strip(),
        "TUNEFLEET_RAY_ADDRESS": ray.address,
        "TUNEFLEET_RAY_TOKEN": ray.token,
        "TUNEFLEET_RAY_PYTHON": str(PYTHON),
        "TUNEFLEET_NODES_DIR": str(tmp_path / "nodes"),
        "TUNEFLEET_NODES_COMMAND": NODES_COMMAND,
        # What the command line names is for this machine; the head and the nodes know another address.
        "TUNEFLEET_NODES_URL": fleet.url,
    }

    def said(*arguments: str) -> str:
        command = [str(PROGRAM), "worker", "--on", "ray", "--nodes", "0:1", "--cpus", "1", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log() -> str:
        return ray.ask("/api/jobs/tunefleet-workers/logs").text

    start = ("--server", "http://127.0.0.1:9", "--json")
    job = {"name": "tunefleet-workers", "job": "tunefleet-workers"}
    assert json.loads(said(*start))["jobs"] == [job]
    with Client(fleet.url, fleet.key, patience_s=30) as client:

        def there() -> list[str]:
            return [view.id for view in client.workers.list().items if view.status == "online"]

        unable = client.submit(ON_GPU).task_id
        _until(lambda: "0 of 0 to 1 workers" in log(), log)
        # The program asks every ten seconds.
        time.sleep(12)
        assert not there(), "these workers have no GPU"
        assert not ray.held()
        task = client.tasks.wait(client.submit(ECHO).task_id, timeout_s=PATIENCE_S)
        assert (task.status, task.error) == ("completed", None), log()
        (worker,) = there()
        assert worker.startswith("tunefleet-workers.0.")
        assert client.tasks.get(unable).status == "queued"
        assert json.loads(said(*start))["jobs"] == [job], "the one that is there already"

        assert "1 of 1 jobs" in said("--end")
        _until(lambda: not there() and not ray.held(), log)
        assert "0 of 1 jobs" in said("--end")
