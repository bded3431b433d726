"""A server that asks no Slurm, and workers that somebody has started on Slurm's nodes for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.ways import NODES_COMMAND
from tests.integration.slurm.cluster import SlurmCluster
from tests.integration.slurm.training import document
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.errors import MachineError, SpecError

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]

PROGRAM = Path(sys.executable).with_name("tunefleet")
PATIENCE_S = 60.0
QUIET = {"LOG_FILE": "", "TUNEFLEET_WARM_START": "false"}


@pytest.fixture(scope="module")
def fleet(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    data = tmp_path_factory.mktemp("plain") / "data"
    with LocalFleet(data, port=free_port(), workers=0, environment=QUIET, save_client=False) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def client(fleet: LocalFleet) -> Iterator[Client]:
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        yield client


ECHO = """apiVersion: tunefleet/v1
metadata: {name: echo}
spec: {taskType: echo, data: {type: list, items: [a]}}
"""


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_workers_come_once_run_tasks_and_end(
    fleet: LocalFleet, client: Client, slurm: SlurmCluster, tmp_path: Path
) -> None:
    environment = {
        **slurm.environment,
        **QUIET,
        "TUNEFLEET_WORKER_KEY": (fleet.data / "keys" / "worker.key").read_text().strip(),
        "TUNEFLEET_NODES_DIR": str(tmp_path / "nodes"),
        "TUNEFLEET_NODES_COMMAND": NODES_COMMAND,
    }

    def said(*arguments: str) -> str:
        command = [PROGRAM, "worker", "--on", "slurm", "--nodes", "2", "--cpus", "2", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def there() -> list[str]:
        return sorted(view.id for view in client.workers.list().items if view.status == "online")

    def logs() -> str:
        return "\n".join(path.read_text() for path in (tmp_path / "nodes").glob("*.log"))

    start = ("--server", fleet.url, "--json")
    jobs = json.loads(said(*start))["jobs"]
    assert [job["name"] for job in jobs] == ["tunefleet-workers-0", "tunefleet-workers-1"]
    _until(lambda: len(there()) == 2, "two workers")
    task = client.tasks.wait(client.submit(ECHO).task_id, timeout_s=PATIENCE_S)
    assert (task.status, task.error) == ("completed", None), logs()
    assert json.loads(said(*start))["jobs"] == jobs, "those that are there already"

    assert "2 of 2 jobs" in said("--end")
    _until(lambda: slurm.busy() == 0 and not there(), logs())
    assert {slurm.state(job["job"])[0] for job in jobs} == {"CANCELLED"}
    assert "0 of 2 jobs" in said("--end")


def test_a_server_that_asks_no_slurm_refuses_a_task_for_it(client: Client) -> None:
    with pytest.raises(SpecError, match=r"Slurm is not enabled on this server .*TUNEFLEET_SLURM=true"):
        client.submit(document())


def test_a_server_that_is_to_ask_slurm_where_there_is_none_says_so_at_start(
    free_port: Callable[[], int], tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    environment = {**QUIET, "TUNEFLEET_SLURM": "true", "PATH": str(tmp_path / "bin")}
    fleet = LocalFleet(tmp_path / "data", port=free_port(), workers=0, environment=environment, save_client=False)
    with pytest.raises(MachineError, match=r"The command sbatch is not installed.*unset TUNEFLEET_SLURM"), fleet:
        pass
