"""What it costs to run 32 equal tasks as one, beside one task and beside 32 runs of their own; all in one run.

    python bench/merge.py            # some minutes
    python bench/merge.py --quick    # about two minutes; wider interval

Equal are tasks of one owner with the same model and options. Each has its own items here, some of them the same as its
neighbour's, and gets its own result. A server and a worker as users have them; the model is the small one that ships,
and its engine is warm before anything is measured. Time is from the submit to the end of the last task.

1. 32 merged ÷ one. What is computed grows with the prompts, what is done once (a process, the model) does not.
   Budget: 4 (32 would be no gain at all).
2. 32 merged ÷ 32 that run one after the other, as they do with `TUNEFLEET_TASK_MERGE=false`. Budget: 0.25.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from _common import Verdict, free_port, interval, status, verdict
from _report import Figure, Peer, Ratio, Report

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

TASKS = 32
PER_ONE_BUDGET = 4.0
PER_UNMERGED_BUDGET = 0.25
PATIENCE_S = 1800.0


def document(tasks: int) -> dict[str, Any]:
    """A workflow whose tasks become ready at the same moment."""
    gate = {"name": "gate", "spec": {"taskType": "echo", "data": {"type": "list", "items": ["go"]}}}
    common = {
        "taskType": "inference",
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "inference": {"temperature": 0, "max_tokens": 16},
    }
    # Neighbours share half of their prompts.
    nodes = [
        {
            "name": f"task-{number}",
            "dependsOn": ["gate"],
            "spec": {
                **common,
                "data": {"type": "list", "items": [f"How much is {number + more}?" for more in range(4)]},
            },
        }
        for number in range(0, 2 * tasks, 2)
    ]
    return {"apiVersion": "tunefleet/v1", "metadata": {"name": "bench"}, "spec": {"graph": {"nodes": [gate, *nodes]}}}


@contextmanager
def fleet(root: Path, name: str, **environment: str) -> Iterator[Client]:
    """A server with one worker that has one slot."""
    given = {"TUNEFLEET_LOG_LEVEL": "WARNING", "TUNEFLEET_JOB_SLOTS": "1", "HF_HUB_OFFLINE": "1", **environment}
    made = LocalFleet(root / name, port=free_port(), environment=given, save_client=False)
    with made, Client(made.url, made.key) as client:
        yield client


def timed(client: Client, tasks: int) -> tuple[float, int]:
    """Run so many equal tasks; returns seconds, and how many prompts were computed."""
    text = json.dumps(document(tasks))
    started = time.perf_counter()
    submitted = client.submit(text)
    flow = client.workflows.wait(submitted.workflow.id, timeout_s=PATIENCE_S)
    seconds = time.perf_counter() - started
    if flow.status != "completed":
        raise SystemExit(
            f"The workflow ended as {flow.status}: {[task.error for task in flow.tasks if task.error][:1]}"
        )
    found = [client.tasks.get(task.id).result for task in flow.tasks if task.name != "gate"]
    return seconds, sum(each["result"]["usage"]["computed"] for each in found if each is not None)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    rounds = 2 if options.quick else 5
    one: list[float] = []
    merged: list[float] = []
    unmerged: list[float] = []
    computed: dict[str, int] = {}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="merge-", ignore_cleanup_errors=True)))
        os.environ["TUNEFLEET_HOME"] = str(root / "home")
        together = stack.enter_context(fleet(root, "together", TUNEFLEET_TASK_MERGE_MAX=str(TASKS)))
        apart = stack.enter_context(fleet(root, "apart", TUNEFLEET_TASK_MERGE="false"))
        for client in (together, apart):
            timed(client, 1)
        for _ in range(rounds):
            one.append(timed(together, 1)[0])
            seconds, computed["merged"] = timed(together, TASKS)
            merged.append(seconds)
            seconds, computed["unmerged"] = timed(apart, TASKS)
            unmerged.append(seconds)
            print(f"  round {len(one)} of {rounds}: {one[-1]:.1f}, {merged[-1]:.1f}, {unmerged[-1]:.1f} s", flush=True)
    return report(one, merged, unmerged, computed, Report("merge", quick=options.quick), options.json)


def report(
    one: list[float],
    merged: list[float],
    unmerged: list[float],
    computed: dict[str, int],
    told: Report,
    file: Path | None,
) -> int:
    """Print and write both ratios with their budgets; returns the exit status."""
    found: dict[str, Any] = {
        "tasks": TASKS,
        "rounds": len(one),
        "one_s": statistics.median(one),
        "merged_s": statistics.median(merged),
        "unmerged_s": statistics.median(unmerged),
        "computed": computed,
    }
    verdicts: list[Verdict] = []
    for name, below, budget in (
        ("merged_per_one", one, PER_ONE_BUDGET),
        ("merged_per_unmerged", unmerged, PER_UNMERGED_BUDGET),
    ):
        ratios = [a / b for a, b in zip(merged, below, strict=True)]
        low, high = interval(ratios)
        verdicts.append(verdict(low, high, budget))
        found[name] = {"ratio": statistics.median(ratios), "low": low, "high": high, "budget": verdicts[-1]}
    for key, name, times in (("merged_per_one", "one task alone", one), ("merged_per_unmerged", "unmerged", unmerged)):
        each = found[key]
        told.row(
            f"{TASKS} equal inference tasks, merged (ratio: our time ÷ the other's)", Figure.of(merged, "s"),
            Peer.of(f"Tunefleet, {name}", "", times, "s"), ratio=Ratio(each["ratio"], each["low"], each["high"]),
            samples=len(one), note=f"our own limit: {each['budget']}",
        )  # fmt: skip
    told.write(file)
    print(f"{TASKS} equal tasks of 4 prompts, {found['rounds']} rounds, medians:")
    print(f"  one task alone            {found['one_s']:8.2f} s")
    print(f"  {TASKS} merged                 {found['merged_s']:8.2f} s, {computed['merged']} prompts computed")
    print(f"  {TASKS} one after the other    {found['unmerged_s']:8.2f} s, {computed['unmerged']} prompts computed")
    for name, budget in (("merged_per_one", PER_ONE_BUDGET), ("merged_per_unmerged", PER_UNMERGED_BUDGET)):
        each = found[name]
        print(f"  {name.replace('_per_', ' ÷ '):<20} {each['ratio']:.3f}, 95 % {each['low']:.3f} to {each['high']:.3f}")
        print(f"  {'':<20} budget {budget}: {each['budget']}")
    return status(*verdicts)


if __name__ == "__main__":
    sys.exit(main())
