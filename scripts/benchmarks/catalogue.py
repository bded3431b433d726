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
    Benchmark("training", "Speed and memory of a LoRA run", 3600.0),
    Benchmark("latency", "The command line, and a server's start, memory and latency during large transfers"),
    Benchmark("dispatch", "Task dispatch, compared with task queues, a bare stream and a bare table", 1500.0),
    Benchmark("recovery", "What is lost or run twice when workers and servers are killed", 1500.0),
    Benchmark("first_step", "Time from a submit to the first training step"),
    Benchmark("overhead", "Overhead of our callbacks in a training run"),
    Benchmark("control", "Overhead of the control callback, and how soon a command takes effect", 2700.0),
    Benchmark("metrics", "Metrics, from the log call in a training run to the store"),
    Benchmark("stall", "How long training pauses to save a checkpoint"),
    Benchmark("exactness", "Whether a killed run continues as if nothing had happened", 1200.0),
    Benchmark("resume_seek", "Time to resume after many rows"),
    Benchmark("hotreload", "How long training pauses when a new federation version arrives"),
    Benchmark("aggregate", "Averaging adapters: time, memory and error", 1200.0),
    Benchmark("rounds", "Federated rounds over HTTP", 1500.0),
    Benchmark("transfer", "Uploading artifacts to the server and downloading them"),
    Benchmark("placement", "Placement decisions with many tasks and workers"),
    Benchmark("stores", "SQLite compared with PostgreSQL, and one server with three"),
    Benchmark("observing", "Overhead of the server's own metrics"),
    Benchmark("inference", "Batch inference in a task, compared with its engine and library alone"),
    Benchmark("merge", "Merging equal tasks into one run"),
    Benchmark("page", "The web page with a long run and a long list"),
    Benchmark("scale", "Server load as the fleet grows", 3600.0, by_itself=True),
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
