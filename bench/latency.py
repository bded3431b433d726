"""How soon the command line is there, and how long the server's event loop stands still while large files pass.

    python bench/latency.py            # about half a minute
    python bench/latency.py --quick    # about ten seconds

1. `tunefleet --help`, beside an interpreter that does nothing, in turns. Budget: 0.2 s.
2. A server with a new folder: until it answers (budget 2 s), and what it takes when idle (budget 150 MB).
3. A server in a process of its own, asked for its health at every moment while a file of 192 MiB goes up and comes back
   down, beside the same while nothing else happens. Budget: 0.1 s for the slowest answer.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
from _common import answers_s, free_port, interval, verdict
from _report import BUDGETS, Figure, Peer, Report, decided

from tunefleet.artifacts import manifest_digest
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.schemas.api import FileEntry

HELP_BUDGET_S = 0.2
ANSWER_BUDGET_S = 0.1
START_BUDGET_S = 2.0
IDLE_BUDGET_MB = 150.0
MIB = 1 << 20
HELP = "from tunefleet.cli.main import run; run(['--help'])"


def started_s(code: str) -> float:
    """Return how long an interpreter takes for some code."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def command_line(rounds: int) -> dict[str, Any]:
    """Return the medians of the help and of nothing."""
    bare, ours = [], []
    for _ in range(rounds):
        bare.append(started_s("pass"))
        ours.append(started_s(HELP))
    medians = {"help_s": statistics.median(ours), "bare_s": statistics.median(bare)}
    return {**medians, "rounds": rounds, "ours": ours, "bare": bare}


def server_start(root: Path, rounds: int) -> dict[str, list[float]]:
    """Return how long servers with new folders took until they answered, and their memory once they have."""
    taken, memory = [], []
    for number in range(rounds):
        begun = time.perf_counter()
        with LocalFleet(root / f"start-{number}", port=free_port(), workers=0, save_client=False) as fleet:
            httpx.get(f"{fleet.url}/api/v1/healthz").raise_for_status()
            taken.append(time.perf_counter() - begun)
            memory.append(max(child.memory_info().rss for child in psutil.Process().children(recursive=True)) / 1e6)
        print(f"  server {number + 1} of {rounds}: {taken[-1]:.2f} s, {memory[-1]:.0f} MB", flush=True)
    return {"start_s": taken, "idle_mb": memory}


def transfer(url: str, key: str, count: int) -> None:
    """Send a file of some MiB and fetch it again, from another process: its work is not the server's."""
    subprocess.run([sys.executable, __file__, "--as-client", url, key, "--count", str(count)], check=True)


def client_main(url: str, key: str, count: int) -> None:
    """Be that process."""
    piece = os.urandom(MIB)
    whole = hashlib.sha256()
    for _ in range(count):
        whole.update(piece)

    def pieces() -> Iterator[bytes]:
        yield from (piece for _ in range(count))

    size = str(count * MIB)
    headers = {"Upload-Offset": "0", "Upload-Length": size, "Content-Length": size}
    with httpx.Client(base_url=f"{url}/api/v1", headers={"X-API-Key": key}, timeout=60) as client:
        client.put(f"/blobs/{whole.hexdigest()}", content=pieces(), headers=headers).raise_for_status()
        # Only what an artifact names may be read.
        entry = FileEntry(path="big", digest=whole.hexdigest(), size_bytes=count * MIB)
        body = {"name": "big", "files": [entry.model_dump()], "digest": manifest_digest([entry])}
        client.post("/artifacts", json=body).raise_for_status()
        with client.stream("GET", f"/blobs/{whole.hexdigest()}") as reply:
            for _ in reply.iter_bytes(MIB):
                pass


def server_answers(root: Path, count: int) -> dict[str, Any]:
    """Ask a server while nothing happens and while a file passes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with LocalFleet(root / "data", port=port, workers=0, save_client=False) as fleet:
        rows = {
            "idle": answers_s(fleet.url, lambda: time.sleep(2)),
            "transfer": answers_s(fleet.url, lambda: transfer(fleet.url, fleet.key, count)),
        }
    return {
        name: {"median_s": statistics.median(taken), "worst_s": max(taken), "count": len(taken)}
        for name, taken in rows.items()
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    parser.add_argument("--as-client", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_client:
        client_main(options.as_client[0], options.as_client[1], options.count)
        return 0
    with tempfile.TemporaryDirectory(prefix="tunefleet-bench-") as name:
        found = {
            "command_line": command_line(5 if options.quick else 20),
            "starts": server_start(Path(name), 2 if options.quick else 7),
            "server": server_answers(Path(name), 64 if options.quick else 192),
        }
    report(found)
    told = written(found, Report("latency", quick=options.quick))
    told.write(options.json)
    return int(any(row.verdict == "BROKEN" for row in told.rows))


def written(found: dict[str, Any], told: Report) -> Report:
    """Put what was found into a report."""
    line, starts = found["command_line"], found["starts"]
    rows = (
        ("`tunefleet --help`", line["ours"], "s", HELP_BUDGET_S),
        ("a server with a new folder, started until it answers", starts["start_s"], "s", START_BUDGET_S),
        ("memory of an idle server", starts["idle_mb"], "MB", IDLE_BUDGET_MB),
    )
    for what, values, unit, budget in rows:
        bare = Peer.of("an interpreter alone", platform.python_version(), line["bare"], "s") if "help" in what else None
        told.row(
            f"{what} (budget {budget:g} {unit})", Figure.of(values, unit), bare, budget=BUDGETS["start"],
            verdict=decided(verdict(*interval(values), budget)), samples=len(values),
        )  # fmt: skip
    for name, row in found["server"].items():
        told.row(
            f"health, {name}, median up to the slowest", Figure(row["median_s"], row["median_s"], row["worst_s"], "s"),
            samples=row["count"], note=f"our own limit of the slowest: {ANSWER_BUDGET_S} s",
        )  # fmt: skip
    return told


def report(found: dict[str, Any]) -> None:
    """Print what was found, with the budgets."""
    line = found["command_line"]
    print(
        f"tunefleet --help   {line['help_s'] * 1e3:.0f} ms, an interpreter alone {line['bare_s'] * 1e3:.0f} ms "
        f"(medians of {line['rounds']}; budget {HELP_BUDGET_S * 1e3:.0f} ms)"
    )
    starts = found["starts"]
    print(
        f"server             {statistics.median(starts['start_s']):.2f} s to answer (budget {START_BUDGET_S} s), "
        f"{statistics.median(starts['idle_mb']):.0f} MB idle (budget {IDLE_BUDGET_MB:.0f} MB)"
    )
    for name, row in found["server"].items():
        print(
            f"health, {name:<9}  median {row['median_s'] * 1e3:.1f} ms, worst {row['worst_s'] * 1e3:.0f} ms of "
            f"{row['count']} (budget {ANSWER_BUDGET_S * 1e3:.0f} ms)"
        )


if __name__ == "__main__":
    sys.exit(main())
