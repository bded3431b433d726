"""The benchmarks in the order in which they run, and the budgets that they are to keep."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent.parent
BENCH: Final = ROOT / "bench"
RESULTS: Final = BENCH / "results"
QUICK_RESULTS: Final = ROOT / "build/bench-quick"
MISSED: Final = BENCH / "missed.md"
PAGE: Final = ROOT / "docs/benchmarks.md"
PICTURES: Final = ROOT / "docs/img/benchmarks"


class Benchmark(NamedTuple):
    """One file below `bench/`.

    Args:
        name: Of the file, without `.py`.
        about: What it measures, for the page.
        limit_s: It is ended after so long.
        by_itself: Whether it runs only where it is asked for by its name, since it takes so long.
    """

    name: str
    about: str
    limit_s: float = 900.0
    by_itself: bool = False


CATALOGUE: Final = (
    Benchmark("training", "How fast a LoRA run trains, and how much memory it takes", 3600.0),
    Benchmark("latency", "The command line, a server's start and memory, and its answers while large files pass"),
    Benchmark("dispatch", "Tasks through the queue, compared with queues, a bare stream and a bare table", 1500.0),
    Benchmark("recovery", "What is lost or done twice when workers and servers are killed", 1500.0),
    Benchmark("first_step", "From a submit to a training's first step"),
    Benchmark("overhead", "What our callbacks cost a training"),
    Benchmark("control", "What it costs to be steerable, and how soon a command acts", 2700.0),
    Benchmark("metrics", "Metrics from a training's log call to the store"),
    Benchmark("stall", "How long a training stands still for a checkpoint"),
    Benchmark("exactness", "Whether a killed training goes on as if nothing had happened", 1200.0),
    Benchmark("resume_seek", "What going on costs after many rows"),
    Benchmark("hotreload", "How long a training stands still when a federation's version comes in"),
    Benchmark("aggregate", "Averages of adapters: time, memory and error", 1200.0),
    Benchmark("rounds", "Federated rounds over HTTP", 1500.0),
    Benchmark("transfer", "Artifacts up to the server and back"),
    Benchmark("placement", "Decisions with many tasks and many workers"),
    Benchmark("stores", "SQLite and PostgreSQL, one server and three"),
    Benchmark("observing", "What it costs a server to count what it does"),
    Benchmark("inference", "Answers by a task, compared with its engine and its library alone"),
    Benchmark("merge", "Equal tasks run as one"),
    Benchmark("page", "The web page with a long training and a long list"),
    Benchmark("scale", "What a fleet costs its server as it grows", 3600.0, by_itself=True),
)

BUDGETED: Final = {
    "training": "step ÷ TRL's: SmolLM2 ≤ 0.83, built-in model ≤ 1.03, next to two busy processes ≤ 1.1; memory beyond "
    "SmolLM2 ≤ 0.75 × TRL's",
    "callbacks": "≤ 1 % of a 20 ms step inside our callbacks; step ratio ≤ 1.01",
    "check": "≤ 0.5 µs one process; ≤ 50 µs with 2 ranks, ≤ 2 µs for fast steps",
    "command": "≤ one step + 10 ms; with ranks ≤ horizon + 1 steps",
    "first-line": "≤ 10 ms median",
    "first-step": "≤ 1.5 s",
    "dispatch": (
        "synced: ahead of Celery (not synced) and of PostgreSQL SKIP LOCKED; unsynced: ahead of Taskiq and Dramatiq"
    ),
    "losses": "0 and 0",
    "placement": "≥ 1,000 decisions/s; time per decision flat",
    "metrics": "≤ 10 µs; ≥ 30,000",
    "average": "≥ 4 × Flower end to end; peak memory ≤ 100 MB",
    "exact": "≤ 10 ms",
    "rounds": "≥ 1.5 × / ≥ 1 × Flower's simulation in the same run",
    "transfer": "≥ 500 / ≥ 600 MB/s; no event-loop stall over 20 ms",
    "control-memory": "≤ 1 MB",
    "hot-reload": "≤ 20 ms, no step lost",
    "recovery": "≤ 3 s; of a worker's machine ≤ `lost_after_s` + 2 s",
    "resume": "bit for bit those of a run that was not killed, every time",
    "start": "≤ 0.2 s / ≤ 2 s / ≤ 150 MB",
}
"""Short name of each budget → what it asks for."""

MAY_BE_MISSED: Final = frozenset(
    {"dispatch", "placement", "metrics", "average", "rounds", "transfer", "first-line", "first-step", "start", "check"}
)
"""Budgets of throughput, and times that are nothing but work of the processor: where it is slow they are named.

All others must be kept: an entry in `bench/missed.md` does not excuse them."""


def budget_words() -> dict[str, str]:
    """Return short name → words of each budget, as `bench/_report.py` has them, which scripts cannot import.

    Raises:
        LookupError: If that file does not define them.
    """
    tree = ast.parse((BENCH / "_report.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "BUDGETS" and node.value is not None:
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise LookupError("bench/_report.py defines no BUDGETS.")
