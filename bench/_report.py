"""What a benchmark has found, as a file that the page of benchmarks is written from.

    report = Report("dispatch", quick=options.quick)
    report.row("no-op tasks", Figure.of(ours, "tasks/s"), Peer.of("Celery", "5.7.0", theirs, "tasks/s"),
               ratio=Ratio.of(pairs), budget=BUDGETS["dispatch"], verdict="kept", samples=9)
    report.write(options.json)

A row compares ours with one peer; a second peer is a second row. A row without a peer has None there. A row that one of
the budgets is about names its words, and whether they are kept.
"""

from __future__ import annotations

import importlib.metadata
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from _common import interval

Kept = Literal["kept", "BROKEN", "undecided"]

BUDGETS: Final = {
    "training": "LoRA run ÷ TRL: time of a step; memory beyond the loaded model",
    "callbacks": "trainer with all callbacks ÷ the bare Hugging Face Trainer",
    "check": "control check per step",
    "command": "command → applied",
    "first-line": "submit → first line of the executor, idle fleet",
    "first-step": "submit → first training step, warm, tiny model",
    "dispatch": "no-op tasks per second, durable, 2 workers",
    "losses": "lost or doubled runs in 100 SIGKILLs",
    "placement": "placement with 100,000 queued tasks and 5,000 workers",
    "metrics": "metrics: cost of a log call in the trainer; stored calls/s of 4 values each",
    "average": "federated average, file to file, 10 × 100 MB",
    "exact": "exact average, 8 adapters of rank 16, one 4096×4096 layer",
    "rounds": "rounds/s with 10 echo clients at 1 / 16 MiB over real HTTP",
    "transfer": "upload with sha256 / download, through the server",
    "control-memory": "control server in a trainer",
    "hot-reload": "hot reload of a 10 MB adapter",
    "recovery": "kill -9 of the server → serving and placing again",
    "resume": "training killed at a random step → the losses after it",
    "start": "`tunefleet --help` / server start / server idle memory",
}
"""Short name → the words of the budget, as a row says them."""


@dataclass(frozen=True)
class Figure:
    """A median with the spread around it, in a unit."""

    median: float
    low: float
    high: float
    unit: str

    @classmethod
    def of(cls, values: Sequence[float], unit: str) -> Figure:
        """Take the median of some values, and its 95 % bootstrap interval."""
        return cls(float(statistics.median(values)), *interval(values), unit)

    @classmethod
    def exactly(cls, value: float, unit: str) -> Figure:
        """Take a value that was counted or measured once, so that it has no spread."""
        return cls(float(value), float(value), float(value), unit)


@dataclass(frozen=True)
class Peer:
    """Who was measured beside us, and what was found."""

    name: str
    version: str
    median: float
    low: float
    high: float
    unit: str

    @classmethod
    def of(cls, name: str, version: str, values: Sequence[float], unit: str) -> Peer:
        """Take the median of some values, and its 95 % bootstrap interval."""
        return cls(name, version, **asdict(Figure.of(values, unit)))


@dataclass(frozen=True)
class Ratio:
    """How many times; which side is above is said in the row's words or note."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Ratio:
        """Take the median of the ratios of pairs, and its 95 % bootstrap interval."""
        return cls(float(statistics.median(values)), *interval(values))


@dataclass(frozen=True)
class Row:
    """One thing that was measured."""

    what: str
    ours: Figure
    peer: Peer | None
    ratio: Ratio | None
    budget: str | None
    verdict: Kept | None
    samples: int
    note: str | None


@dataclass(frozen=True)
class Line:
    """One line of a plot."""

    name: str
    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Series:
    """A plot."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]


def decided(said: str) -> Kept:
    """Shorten what `_common.verdict` says to its one word."""
    if said == "kept":
        return "kept"
    return "BROKEN" if said == "BROKEN" else "undecided"


def kept_if(kept: bool) -> Kept:
    """Say of something that is certain, such as a count, whether it is kept."""
    return "kept" if kept else "BROKEN"


def version_here(distribution: str) -> str:
    """Return which version of a peer runs in this interpreter."""
    return importlib.metadata.version(distribution)


@dataclass
class Report:
    """What a benchmark has found.

    Args:
        benchmark: Its name: of the file, without `.py`.
        quick: Whether this was a short run that only proves that it runs. Such a report is never published.
    """

    benchmark: str
    quick: bool = False
    rows: list[Row] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)

    def row(
        self,
        what: str,
        ours: Figure,
        peer: Peer | None = None,
        *,
        ratio: Ratio | None = None,
        budget: str | None = None,
        verdict: Kept | None = None,
        samples: int = 1,
        note: str | None = None,
    ) -> None:
        """Add a row.

        Raises:
            ValueError: If it names a budget that is not one of `BUDGETS`, or a budget without a verdict.
        """
        if budget is not None and budget not in BUDGETS.values():
            raise ValueError(f"No budget reads {budget!r}; take one of bench/_report.py's BUDGETS.")
        if (budget is None) != (verdict is None):
            raise ValueError(f"{what}: a budget and its verdict go together.")
        self.rows.append(Row(what, ours, peer, ratio, budget, verdict, samples, note))

    def plot(self, title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> None:
        """Add a plot."""
        self.series.append(Series(title, x_label, y_label, list(lines)))

    def write(self, file: Path | None) -> None:
        """Write the report, if it was asked for."""
        if file is not None:
            text = json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False)
            file.write_text(f"{text}\n", encoding="utf-8")
