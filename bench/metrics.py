"""What a log call of four values costs a trainer, how many are stored a second, and what a killed trainer loses.

    python bench/metrics.py --json FILE            # about four minutes
    python bench/metrics.py --json FILE --quick    # about one minute

Ours beside Trackio and MLflow (synchronous and asynchronous), each in a process of its own, in turns. What is stored:
ours in the job's journal (synced to the disk at the end) and from there in the server's store (SQLite, synced at each
commit: `TUNEFLEET_SYNC=FULL`); Trackio's and MLflow's in a SQLite file on the same disk, as they open it. A killed
trainer logs a call each millisecond; what it loses is what had returned and is not stored once its worker or a reader
has read what it left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import BROKEN_STATUS, verdict
from _limit import end_after
from _report import BUDGETS, Figure, Kept, Peer, Ratio, Report, decided, version_here
from observing import Asked, served

ROOT = Path(__file__).resolve().parent.parent
CALLS = {"tunefleet": 50_000, "trackio": 10_000, "mlflow": 300, "mlflow-async": 1_000}
PACKAGES = {"trackio": "trackio", "mlflow": "mlflow-skinny", "mlflow-async": "mlflow-skinny"}
CALL_BUDGET_US, STORED_BUDGET = 10.0, 30_000.0
BATCH_LINES = 1000
LIMIT_S = 900
PATIENCE_S = 120.0


def words(who: str, folder: str, calls: int) -> list[str]:
    return [sys.executable, "-m", "bench.peers.metrics_app", who, folder, str(calls)]


def logged(who: str, share: float) -> dict[str, float]:
    """Log some calls in a fresh process; returns µs a call and durable calls a second."""
    with tempfile.TemporaryDirectory(prefix="metrics-") as folder:
        command = words(who, folder, int(CALLS[who] * share))
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        if done.returncode:
            raise SystemExit(f"{who}: {done.stderr[-2000:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def lost(who: str, seed: int) -> int:
    """Kill a logging trainer; returns how many calls had returned and were not stored."""
    with tempfile.TemporaryDirectory(prefix="metrics-") as name:
        folder, count = Path(name), Path(name) / "count"
        count.write_bytes(bytes(8))
        environment = {**os.environ, "BENCH_COUNT": str(count)}
        process = subprocess.Popen(
            words(who, name, 0), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while returned(count) < 20:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{who} logs nothing.")
                time.sleep(0.01)
            time.sleep(1.5 + random.Random(seed).random())
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        return max(0, returned(count) - stored(who, folder))


def returned(count: Path) -> int:
    found: int = struct.unpack("<q", count.read_bytes())[0]
    return found


def stored(who: str, folder: Path) -> int:
    """Count the calls that a reader finds."""
    if who == "tunefleet":
        lines = (folder / "journal" / "bench.jsonl").read_bytes().split(b"\n")[:-1]
        return sum(json.loads(line)["type"] == "metric" for line in lines)
    files = [folder / "mlflow.db"] if who.startswith("mlflow") else list(folder.rglob("*.db"))
    question = (
        "select count(*) from metrics where key='loss'" if who.startswith("mlflow") else "select count(*) from metrics"
    )
    total = 0
    for file in files:
        with sqlite3.connect(file) as store:
            total += store.execute(question).fetchone()[0]
    return total


def ingested(asked: Asked, batches: int) -> float:
    """Return log calls a second that our server takes over HTTP and commits."""
    bodies = []
    for _ in range(batches):
        rows = [
            {"seq": seq, "at": 1.0, "type": "metric", "series": "train", "step": seq,
             "values": {"loss": 1 / (1 + seq), "learning_rate": 1e-4, "grad_norm": 0.1, "gpu": 50.0}}
            for seq in range(asked.told, asked.told + BATCH_LINES)
        ]  # fmt: skip
        bodies.append({"launch": "l", "from_seq": asked.told, "lines": [json.dumps(row) for row in rows]})
        asked.told += BATCH_LINES
    path = f"/tasks/{asked.task_id}/journal"
    began = time.perf_counter()
    for body in bodies:
        asked.post(path, body, Authorization=f"Bearer {asked.token}")
    return batches * BATCH_LINES / (time.perf_counter() - began)


def tell(
    report: Report, found: dict[str, list[dict[str, float]]], server: list[float], gone: dict[str, list[int]]
) -> None:
    """Print and report."""
    ours = found["tunefleet"]
    call = Figure.of([each["call_us"] for each in ours], "µs")
    kept = decided(verdict(call.low, call.high, CALL_BUDGET_US))
    rate = Figure.of(server, "calls/s")
    fast = decided(verdict(-rate.high, -rate.low, -STORED_BUDGET))
    print(f"log call  ours {call.median:8.2f} µs [{call.low:.2f}, {call.high:.2f}]: {kept}")
    print(f"stored    ours {rate.median:10,.0f}/s by the server over HTTP: {fast}")
    for who, version in ((name, version_here(package)) for name, package in PACKAGES.items()):
        for what, key, unit, mine, budget in (
            ("log call of 4 values", "call_us", "µs", [each["call_us"] for each in ours], kept),
            ("calls of 4 values stored (ours: by the server)", "durable_per_s", "calls/s", server, fast),
            ("calls of 4 values durable next to the trainer", "durable_per_s", "calls/s",
             [each["durable_per_s"] for each in ours], None),
        ):  # fmt: skip
            theirs = [each[key] for each in found[who]]
            row(report, what, mine, theirs, who, version, unit, budget)
        killed = [float(each) for each in gone["tunefleet"]]
        row(report, "calls lost by SIGKILL, one call a millisecond", killed, [float(each) for each in gone[who]], who,
            version, "calls", None)  # fmt: skip


def row(
    report: Report,
    what: str,
    mine: list[float],
    theirs: list[float],
    who: str,
    version: str,
    unit: str,
    kept: Kept | None,
) -> None:
    ratio = Ratio.of([a / b for a, b in zip(mine, theirs, strict=True)]) if all(theirs) else None
    print(f"  {what:62} ours {statistics.median(mine):12,.1f}  {who:13} {statistics.median(theirs):12,.1f} {unit}")
    report.row(
        what, Figure.of(mine, unit), Peer.of(who, version, theirs, unit), ratio=ratio,
        budget=None if kept is None else BUDGETS["metrics"], verdict=kept, samples=len(mine),
        note="called without a pause, so that the writers' threads compete" if unit == "µs" else None,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="Where the report goes.")
    parser.add_argument("--quick", action="store_true", help="One round of fewer calls.")
    options = parser.parse_args()
    end_after(LIMIT_S)
    rounds, share, batches = (1, 0.2, 10) if options.quick else (7, 1.0, 50)
    found: dict[str, list[dict[str, float]]] = {who: [] for who in CALLS}
    gone: dict[str, list[int]] = {who: [] for who in CALLS}
    server = []
    with tempfile.TemporaryDirectory(prefix="metrics-server-") as name:
        # The worker that the server knows says nothing while the peers have their turns.
        os.environ |= {"TUNEFLEET_SYNC": "FULL", "TUNEFLEET_LOST_AFTER_S": "3600"}
        with served(Path(name), "off") as asked:
            ingested(asked, 2)
            for turn in range(rounds):
                order = list(CALLS) if turn % 2 else list(reversed(CALLS))
                for who in order:
                    found[who].append(logged(who, share))
                server.append(ingested(asked, batches))
                for who in order:
                    gone[who].append(lost(who, turn))
    report = Report("metrics", quick=options.quick)
    tell(report, found, server, gone)
    report.write(options.json)
    return BROKEN_STATUS if any(each.verdict == "BROKEN" for each in report.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
