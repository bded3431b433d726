"""The places where a training can run, for the suite that is the same for all of them."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import tunefleet
from tests.integration.ray.cluster import PYTHON, RayCluster
from tests.integration.slurm.cluster import SlurmCluster
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import TaskDetail

PATIENCE_S = 240.0
# The nodes inherit no PYTHONPATH, and run what is tested here all the same.
NODES_COMMAND = shlex.join([
    "env", f"PYTHONPATH={Path(tunefleet.__file__).parents[1]}", str(Path(sys.executable).with_name("tunefleet"))
])  # fmt: skip
_PROGRAM = "tunefleet.workloads.entrypoint"
_SETTINGS = {
    "ENABLE_ELASTIC_SCALING": "false",
    "HF_HUB_OFFLINE": "1",
    "LOG_FILE": "",
    "OMP_NUM_THREADS": "1",
    # So that each rank is found by its command line.
    "TUNEFLEET_WARM_START": "false",
}


@dataclass
class Way:
    """One of them: a server, and what a document says to run there.

    Args:
        name: Of the way.
        fleet: The server, and its workers if it has some of its own.
        client: Asks it.
        nodes: On how many nodes each training runs.
        engine: Whose nodes those are; None for the fleet's own workers.
        held: Returns how many nodes the engine has given away.
    """

    name: str
    fleet: LocalFleet
    client: Client
    nodes: int
    engine: str | None = None
    held: Callable[[], int] = field(default=lambda: 0)

    @property
    def head(self) -> str:
        """What the spec of a training says of its place."""
        engine = f"  engine: {self.engine}\n" if self.engine else ""
        return f"{engine}  resources: {{nodes: {self.nodes}, hardware: {{gpu: {{count: 0}}}}}}\n"

    def task(self, task_id: str) -> TaskDetail:
        """Return a task."""
        return self.client.tasks.get(task_id)

    def reached(self, task_id: str, step: int) -> None:
        """Wait until a training has come to a step, as the server knows it."""

        def there() -> bool:
            task = self.task(task_id)
            assert task.status != "failed", f"{task.error}\n{self.logs()}"
            return self.steps(task_id)[-1:] >= [step]

        self.until(there, f"step {step} of {task_id}")

    def steps(self, task_id: str) -> list[int]:
        """Return the steps of the series that the server has."""
        points = self.client.tasks.metrics(task_id, max_points=5000).points
        return [point.step for point in points if "loss" in point.values]

    def ranks(self, task_id: str) -> list[psutil.Process]:
        """Return the processes that train a task, wherever they run."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            alive = process.info["status"] != psutil.STATUS_ZOMBIE
            if alive and _PROGRAM in words and any(word.endswith(task_id) for word in words):
                found.append(process)
        return found

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{self.name}: {what} did not come: {self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        """Return the ends of what was written."""
        files = [*self.fleet.logs.glob("*.log"), *self.fleet.data.parent.glob("nodes/*.log")]
        return "\n".join(f"--- {file}\n{file.read_text()[-2500:]}" for file in files)


@contextmanager
def own_workers(folder: Path, free_port: Callable[[], int], count: int) -> Iterator[Way]:
    """A fleet with workers of its own: one is the plain case, several make a gang."""
    with _server(folder, free_port, count, {}) as (fleet, client):
        fleet.await_workers(PATIENCE_S)
        yield Way("plain" if count == 1 else "gang", fleet, client, nodes=count)


@contextmanager
def on_slurm(folder: Path, free_port: Callable[[], int], **settings: str) -> Iterator[Way]:
    """A server without workers, and a Slurm of two nodes."""
    cluster = SlurmCluster(folder / "slurm", free_port)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        yield stack.enter_context(with_slurm(cluster.start(), folder, free_port, nodes=2, **settings))


@contextmanager
def with_slurm(
    cluster: SlurmCluster, folder: Path, free_port: Callable[[], int], *, nodes: int = 2, **settings: str
) -> Iterator[Way]:
    """A server without workers that asks a Slurm which is there."""
    given = {"TUNEFLEET_SLURM": "true", "SLURM_CONF": str(cluster.config), **settings}
    with _server(folder, free_port, 0, given) as (fleet, client):
        yield Way("slurm", fleet, client, nodes=nodes, engine="slurm", held=cluster.busy)


@contextmanager
def on_ray(folder: Path, free_port: Callable[[], int]) -> Iterator[Way]:
    """A server without workers, and a Ray of two nodes."""
    # The path of a socket there must be short.
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="tf-ray-", ignore_cleanup_errors=True))
        cluster = RayCluster(Path(place), free_port)
        stack.callback(cluster.stop)
        cluster.start()
        given = {
            "TUNEFLEET_RAY_ADDRESS": cluster.address,
            "TUNEFLEET_RAY_TOKEN": cluster.token,
            "TUNEFLEET_RAY_PYTHON": str(PYTHON),
        }
        fleet, client = stack.enter_context(_server(folder, free_port, 0, given))
        yield Way("ray", fleet, client, nodes=2, engine="ray", held=lambda: len(cluster.held()))


@contextmanager
def _server(
    folder: Path, free_port: Callable[[], int], workers: int, settings: Mapping[str, str]
) -> Iterator[tuple[LocalFleet, Client]]:
    environment = {
        **_SETTINGS,
        "TUNEFLEET_NODES_DIR": str(folder / "nodes"),
        "TUNEFLEET_NODES_COMMAND": NODES_COMMAND,
        "TUNEFLEET_NODES_LOOK_S": "0.5",
        **settings,
    }
    made = LocalFleet(folder / "data", port=free_port(), workers=workers, environment=environment, save_client=False)
    with made as fleet, Client(fleet.url, fleet.key, patience_s=30) as client:
        yield fleet, client
