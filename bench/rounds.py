"""How many federated rounds a second: a real server over HTTP, beside Flower's simulation in the same run.

    python bench/rounds.py            # about fifteen minutes
    python bench/rounds.py --quick    # about three; the two sizes that have a budget, one turn

Echo clients: each fetches the newest version and sends it back as its update. Ours are threads of one process, with
one connection each; the server is a process of its own with its default settings. Every upload has its sha256 checked,
is validated value by value and stored durably before it counts; the average is stored, and published as a version that
survives a power cut. Flower's clients are actors of its simulation: no network, no disk, no digests. Both average the
same tensors by FedAvg, in turns. Rounds in which the processes warm up are not counted. The clients of NVFlare's
simulator are processes with real messages; it is timed at 1 MiB alone, where a round takes it seconds already.

Budgets with 10 clients: 1.5 times Flower's rounds a second at 1 MiB, and as many at 16 MiB. The upload guide's
`.tar.gz` calls are timed beside, without a budget: their clients squeeze each upload with `gzip` as Python's `tarfile`
does, on the same processors.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from _common import Verdict, free_port, interval, status, verdict
from _report import BUDGETS, Figure, Peer, Ratio, Report, decided
from peers.environment import FLOWER, NVFLARE, ROOT, interpreter, version_of

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.client.routes.federation_routes import cancel_federation, create_federation, get_version
from tunefleet.spec.options.federation_options import FederationSpec

WARM_UP = 3
Found = dict[str, Any]


class Case(NamedTuple):
    """One size of federation.

    Args:
        clients: How many there are.
        mib: Size of the adapter.
        rounds: That are timed.
        budget: Least ratio to Flower's rounds a second, if there is one.
    """

    clients: int
    mib: int
    rounds: int
    budget: float | None = None


CASES = (Case(10, 1, 40, 1.5), Case(10, 16, 12, 1.0), Case(10, 64, 3), Case(100, 1, 6))
ARCHIVES = Case(10, 1, 8)
BESIDE_NVFLARE = Case(10, 1, 8)
_NVFLARE_S = 400.0


def output_of(*command: str, timeout_s: float | None = None) -> Found:
    """Run a process, and return the JSON object in its output."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{' '.join(command[:3])} did not end within {timeout_s:.0f} s.") from None
    found = next((line for line in done.stdout.splitlines() if line.startswith("{")), None)
    if done.returncode or found is None:
        raise SystemExit(f"{' '.join(command[:3])} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(found))


def ours(fleet: LocalFleet, client: Client, case: Case, way: str = "raw") -> float:
    """Rounds a second of a federation of its own."""
    made = client.transport.run(create_federation(FederationSpec(name="echo", min_workers=case.clients)))
    last = WARM_UP + case.rounds
    given = (str(case.clients), str(last), str(case.mib), way)
    script = str(ROOT / "bench/_echo.py")
    seen_at = output_of(sys.executable, script, fleet.url, made.token, made.id, *given)["seen_at"]
    version = client.transport.run(get_version(made.id, last))
    if len(seen_at) != last or len(version.contributors) != case.clients:
        raise SystemExit(f"{made.id} made {len(seen_at)} versions, the last of {len(version.contributors)} updates.")
    client.transport.run(cancel_federation(made.id))
    return case.rounds / float(seen_at[-1] - seen_at[WARM_UP - 1])


def flowers(case: Case) -> float:
    """Rounds a second of Flower's simulation."""
    python, script = str(interpreter("flower", FLOWER)), str(ROOT / "bench/peers/flower_rounds.py")
    return float(output_of(python, script, str(case.mib), str(case.clients), str(case.rounds))["rounds_per_s"])


def nvflares(case: Case) -> float:
    """Rounds a second of NVFlare's simulator."""
    python, script = str(interpreter("nvflare", NVFLARE)), str(ROOT / "bench/peers/nvflare_rounds.py")
    given = (str(case.mib), str(case.clients), str(case.rounds))
    return float(output_of(python, script, *given, timeout_s=_NVFLARE_S)["rounds_per_s"])


def beside_nvflare(fleet: LocalFleet, client: Client, turns: int) -> Found | None:
    """Time both one after the other: a minute lies between the start of its processes and its first round.

    Returns:
        Null, and says why, if its simulator does not get to the end: Flower's figures are not thrown away for that.
    """
    pairs = []
    try:
        for _ in range(turns):
            pairs.append((ours(fleet, client, BESIDE_NVFLARE), nvflares(BESIDE_NVFLARE)))
            print(f"  beside NVFlare: ours {pairs[-1][0]:.2f}, its simulator {pairs[-1][1]:.2f} rounds/s", flush=True)
    except SystemExit as error:
        print(f"NVFlare's row is left out: {error}", file=sys.stderr, flush=True)
        return None
    return {"ours": [mine for mine, _ in pairs], "nvflare": [theirs for _, theirs in pairs]}


def compare(fleet: LocalFleet, client: Client, case: Case, turns: int) -> Found:
    """Time both in turns."""
    mine, theirs = [], []
    for turn in range(turns):
        if turn % 2:
            theirs.append(flowers(case))
        mine.append(ours(fleet, client, case))
        if not turn % 2:
            theirs.append(flowers(case))
        said = f"{case.clients} clients, {case.mib} MiB, turn {turn + 1} of {turns}"
        print(f"  {said}: ours {mine[-1]:.2f}, Flower {theirs[-1]:.2f} rounds/s", flush=True)
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    low, high = interval(ratios)
    kept = None if case.budget is None else verdict(1 / high, 1 / low, 1 / case.budget)
    return {
        **case._asdict(),
        "ours": mine,
        "flower": theirs,
        "ours_per_s": statistics.median(mine),
        "flower_per_s": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "verdict": kept,
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    turns, cases = (1, CASES[:2]) if options.quick else (5, CASES)
    interpreter("flower", FLOWER)
    interpreter("nvflare", NVFLARE)
    with tempfile.TemporaryDirectory(prefix="rounds-", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        root = Path(folder)
        os.environ["TUNEFLEET_HOME"] = str(root / "home")
        quiet = {"TUNEFLEET_LOG_LEVEL": "WARNING"}
        fleet = LocalFleet(root / "fleet", port=free_port(), workers=0, environment=quiet, save_client=False)
        stack.enter_context(fleet)
        client = stack.enter_context(Client(fleet.url, fleet.key))
        began = os.getloadavg()[0]
        rows = [compare(fleet, client, case, turns) for case in cases]
        archives = [ours(fleet, client, ARCHIVES, "archive") for _ in range(3)]
        found = {
            "cases": rows,
            "archives": archives,
            "nvflare": beside_nvflare(fleet, client, 1 if options.quick else 3),
            "archives_per_s": statistics.median(archives),
            "load": [began, os.getloadavg()[0]],
        }
    written(found, quick=options.quick, file=options.json)
    return report(found)


def written(found: Found, *, quick: bool, file: Path | None) -> None:
    """Write what was found for the page of benchmarks."""
    told, flower = Report("rounds", quick=quick), version_of(interpreter("flower", FLOWER), "flwr")
    for row in found["cases"]:
        wanted = "" if row["budget"] is None else f" (budget {row['budget']} × Flower)"
        told.row(
            f"rounds with {row['clients']} echo clients of {row['mib']} MiB over HTTP{wanted}",
            Figure.of(row["ours"], "rounds/s"), Peer.of("Flower simulation", flower, row["flower"], "rounds/s"),
            ratio=Ratio(row["ratio"], row["low"], row["high"]),
            budget=None if row["budget"] is None else BUDGETS["rounds"],
            verdict=None if row["verdict"] is None else decided(row["verdict"]), samples=len(row["ours"]),
            note="ours: HTTP, digests, synced to the disk; Flower's: in memory, no network",
        )  # fmt: skip
    if found["nvflare"] is not None:
        told.row(**nvflare_row(found["nvflare"]))
    told.row(
        f"rounds by the upload guide's archives, {ARCHIVES.clients} clients of {ARCHIVES.mib} MiB",
        Figure.of(found["archives"], "rounds/s"), samples=len(found["archives"]),
    )  # fmt: skip
    told.write(file)


def nvflare_row(beside: Found) -> dict[str, Any]:
    """The row of NVFlare's simulator, as `Report.row` takes it."""
    case, version = BESIDE_NVFLARE, version_of(interpreter("nvflare", NVFLARE), "nvflare")
    return {
        "what": f"rounds with {case.clients} echo clients of {case.mib} MiB, compared with NVFlare "
        "(ratio: ours ÷ NVFlare's)",
        "ours": Figure.of(beside["ours"], "rounds/s"),
        "peer": Peer.of("NVFlare simulator", version, beside["nvflare"], "rounds/s"),
        "ratio": Ratio.of([mine / theirs for mine, theirs in zip(beside["ours"], beside["nvflare"], strict=True)]),
        "samples": len(beside["ours"]),
    }


def report(found: Found) -> int:
    """Print all figures with their budgets; returns the exit status."""
    verdicts: list[Verdict] = [row["verdict"] for row in found["cases"] if row["verdict"] is not None]
    for row in found["cases"]:
        print(f"{row['clients']} clients, {row['mib']} MiB, rounds a second, medians:")
        print(f"  ours {row['ours_per_s']:.2f}, Flower's simulation {row['flower_per_s']:.2f}")
        print(f"  ours ÷ Flower {row['ratio']:.2f}, 95 % {row['low']:.2f} to {row['high']:.2f}", end="")
        print("" if row["budget"] is None else f"; budget {row['budget']}: {row['verdict']}")
    size = f"{ARCHIVES.clients} clients, {ARCHIVES.mib} MiB"
    print(f"By the upload guide's archives, {size}: {found['archives_per_s']:.2f} rounds a second")
    before, after = found["load"]
    print(f"Load of the machine before {before:.1f}, after {after:.1f}; above 2 others were at work.")
    return status(*verdicts)


if __name__ == "__main__":
    sys.exit(main())
