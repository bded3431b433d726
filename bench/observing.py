"""What it costs a server to count what it does: the exchanges of workers and the ingest of metrics, counted and not.

    python bench/observing.py            # about two minutes
    python bench/observing.py --quick    # about half a minute

Two real servers, one that counts (`TUNEFLEET_METRICS=key`) and one that does not (`off`), are asked the same in turns
over HTTP. What is printed is the ratio of the times of a turn, its median and its 95 % interval. Budget: 1.05.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from _common import free_port, interval, status, verdict
from _report import Figure, Peer, Ratio, Report

BUDGET = 1.05
BATCH_POINTS = 100
PATIENCE_S = 60.0
ECHO = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: counted}
spec: {taskType: echo, data: {type: list, items: [a]}}
"""
CAPABILITIES = {
    "version": "0", "hostname": "bench", "executors": [{"kind": "echo", "slot_class": "light"}], "slots": {"light": 1},
    "gpus": [], "cpu_count": 2, "memory_total_bytes": 8 << 30, "memory_free_bytes": 8 << 30,
    "disk_free_bytes": 8 << 30,
}  # fmt: skip


class Asked:
    """A server, and the one worker that it has."""

    def __init__(self, url: str, data: Path) -> None:
        admin, worker = ((data / "keys" / f"{name}.key").read_text().strip() for name in ("admin", "worker"))
        self.client = httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {worker}"}, timeout=60)
        body = {"worker_id": "w", "session": "s", "state_id": "f", "capabilities": CAPABILITIES, "holding": []}
        self.post("/link/register", body)
        document = {"Content-Type": "application/yaml", "Authorization": f"Bearer {admin}"}
        self.client.post("/workflows", content=ECHO, headers=document).raise_for_status()
        (offer,) = self.exchange(wait_s=PATIENCE_S, want={"light": 1})["offers"]
        self.token, self.task_id, self.told = offer["token"], offer["task_id"], 0
        self.exchange(accepts=[self.token])

    def post(self, path: str, body: object, **headers: str) -> dict[str, Any]:
        reply = self.client.post(path, json=body, headers=headers)
        reply.raise_for_status()
        found: dict[str, Any] = reply.json()
        return found

    def exchange(self, **more: object) -> dict[str, Any]:
        held = [self.token] if hasattr(self, "token") else []
        return self.post("/link/exchange", {"worker_id": "w", "session": "s", "wait_s": 0.0, "holding": held, **more})

    def ingest(self) -> None:
        rows = [
            {"seq": seq, "at": 1.0, "type": "metric", "series": "train", "step": seq, "values": {"loss": 1 / (1 + seq)}}
            for seq in range(self.told, self.told + BATCH_POINTS)
        ]
        body = {"launch": "l", "from_seq": self.told, "lines": [json.dumps(row) for row in rows]}
        self.post(f"/tasks/{self.task_id}/journal", body, Authorization=f"Bearer {self.token}")
        self.told += BATCH_POINTS


@contextmanager
def served(root: Path, metrics: str) -> Iterator[Asked]:
    data, port = root / metrics, free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "TUNEFLEET_METRICS": metrics, "TUNEFLEET_HOME": str(root / "home")}
    words = [sys.executable, "-m", "tunefleet.api", "--data", str(data), "--port", str(port)]
    with (root / f"{metrics}.log").open("wb") as log:
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((root / f"{metrics}.log").read_text())
            time.sleep(0.05)
        yield Asked(url, data)
    finally:
        process.terminate()
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v1/healthz").is_success
    except httpx.TransportError:
        return False


def taken_s(work: Callable[[], object], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begun) / times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Fewer and shorter turns.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    told = Report("observing", quick=options.quick)
    turns, times = (6, 40) if options.quick else (40, 150)
    verdicts = []
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tunefleet-observing-")))
        counted, bare = (stack.enter_context(served(root, metrics)) for metrics in ("key", "off"))
        for name, question in (("exchange", Asked.exchange), ("100 points", Asked.ingest)):
            pairs = []
            for turn in range(turns + 1):
                # Who is asked first changes from turn to turn; the first turn warms both up.
                order = (counted, bare) if turn % 2 else (bare, counted)
                found = {}
                for each in order:
                    each.exchange()  # or its lease would run out while nothing but points are told
                    found[each] = taken_s(partial(question, each), times)
                if turn:
                    pairs.append((found[counted], found[bare]))
            ratios = [ours / theirs for ours, theirs in pairs]
            low, high = interval(ratios)
            verdicts.append(verdict(low, high, BUDGET))
            told.row(
                f"{name}, with counting", Figure.of([1e3 * mine for mine, _ in pairs], "ms"),
                Peer.of("Tunefleet without it", "", [1e3 * bare for _, bare in pairs], "ms"), ratio=Ratio.of(ratios),
                samples=turns, note=f"our own limit {BUDGET}: {verdicts[-1]}",
            )  # fmt: skip
            ours, theirs = (statistics.median(each) * 1000 for each in zip(*pairs, strict=True))
            print(
                f"{name:10} counted {ours:6.2f} ms   not {theirs:6.2f} ms   ratio {statistics.median(ratios):.3f} "
                f"[{low:.3f}, {high:.3f}]   budget {BUDGET}: {verdicts[-1]}",
                flush=True,
            )
    told.write(options.json)
    return status(*verdicts)


if __name__ == "__main__":
    sys.exit(main())
