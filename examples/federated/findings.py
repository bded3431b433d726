"""The results of the measurements: differences with their standard errors, the table, and the figure."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Measured = Mapping[int, Sequence[tuple[float, int]]]
"""By seed, for each held-out row: the sum of its losses in nats, and its tokens. The rows are the same for all."""
MEASURABLE = 1e-7
"""Smaller errors of a product are rounding."""
Wide = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two losses.

    Args:
        mean: In nats a token.
        of_rows: Standard error for other held-out rows.
        of_seeds: Standard error for other seeds; not a number for a single one.
    """

    mean: float
    of_rows: float
    of_seeds: float

    @property
    def error(self) -> float:
        """Standard error for other rows and other seeds: a little too large, never too small, since both have noise."""
        return self.of_rows if math.isnan(self.of_seeds) else math.hypot(self.of_rows, self.of_seeds)

    @property
    def errors(self) -> float:
        """The mean in standard errors."""
        return self.mean / self.error


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the README.

    Args:
        text: With the numbers that it rests on.
        holds: Whether they bear it out.
    """

    text: str
    holds: bool


def per_token(measured: Sequence[tuple[float, int]]) -> float:
    """Return the mean loss per token over all rows, in nats."""
    return math.fsum(total for total, _ in measured) / sum(count for _, count in measured)


def loss(measured: Measured) -> list[float]:
    """Return the mean loss per token for each seed."""
    totals, tokens = _arrays(measured)
    found: list[float] = (totals.sum(axis=1) / tokens.sum()).tolist()
    return found


def difference(higher: Measured, lower: Measured) -> Difference:
    """Compare two arms, paired by seed and by row.

    A loss is a ratio, nats by tokens, so rows count by their length; the standard error over rows is that of a ratio
    of sums. Seeds and rows are crossed: each row was measured with each seed.
    """
    first, tokens = _arrays(higher)
    second, _ = _arrays(lower)
    apart = first - second
    each = apart.sum(axis=1) / tokens.sum()
    mean, seeds, rows = float(each.mean()), *apart.shape
    left = apart.mean(axis=0) - mean * tokens
    of_rows = math.sqrt(rows / (rows - 1) * float((left**2).sum())) / float(tokens.sum())
    of_seeds = float(each.std(ddof=1)) / math.sqrt(seeds) if seeds > 1 else math.nan
    return Difference(mean, of_rows, of_seeds)


def _arrays(measured: Measured) -> tuple[Wide, Wide]:
    given = np.array([measured[seed] for seed in sorted(measured)], dtype=np.float64)
    return given[:, :, 0], given[0, :, 1]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table.

    Args:
        arm: What was trained.
        losses: On held-out rows, by seed.
        behind: How far it is behind the federation; None for the federation itself.
    """

    arm: str
    losses: list[float]
    behind: Difference | None


def table(arms: Mapping[str, Measured], against: str) -> list[Line]:
    """Compare every arm with one of them."""
    return [
        Line(name, loss(measured), None if name == against else difference(measured, arms[against]))
        for name, measured in arms.items()
    ]


def as_markdown(lines: Sequence[Line]) -> str:
    """Return the table as text."""
    seeds = range(len(lines[0].losses))
    head = [
        "eval loss, nats a token",
        *(f"seed {seed}" for seed in seeds),
        "mean",
        "behind the federation ± SE",
        "SEs",
    ]
    rows = [head, ["---", *("---:" for _ in head[1:])]]
    for line in lines:
        behind = ["", ""]
        if line.behind is not None:
            behind = [f"{line.behind.mean:+.3f} ± {line.behind.error:.3f}", f"{line.behind.errors:.1f}"]
        mean = sum(line.losses) / len(line.losses)
        rows.append([line.arm, *(f"{each:.3f}" for each in line.losses), f"{mean:.3f}", *behind])
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    aligned = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in aligned)


def write_csv(lines: Sequence[Line], file: Path) -> None:
    """Write the table as a file for programs."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["arm", "seed", "loss", "behind", "se", "se_rows", "se_seeds"])
        for line in lines:
            found = line.behind
            behind = ["", "", "", ""] if found is None else [found.mean, found.error, found.of_rows, found.of_seeds]
            for seed, each in enumerate(line.losses):
                writer.writerow([line.arm, seed, each, *behind])


def claims_of_losses(lines: Sequence[Line], alone: Sequence[str]) -> list[Claim]:
    """Return whether the federation beats each of its workers by more than two standard errors."""
    found = []
    for line in lines:
        if line.arm in alone and line.behind is not None:
            text = f"the federation beats {line.arm} by {line.behind.mean:.3f} ± {line.behind.error:.3f} nats a token"
            found.append(Claim(text, line.behind.errors > 2))
    return found


def claims_of_errors(errors: Mapping[int, Sequence[tuple[float, float]]]) -> list[Claim]:
    """Return whether, in each round, the exact average is nearer to the average of the products than the plain one."""
    pairs = [pair for rounds in errors.values() for pair in rounds]
    exact, plain = (sum(each) / len(pairs) for each in zip(*pairs, strict=True))
    text = f"the exact average is nearer to the average of the products than the plain one in all {len(pairs)} rounds"
    nearer = all(ours < max(theirs, MEASURABLE) for ours, theirs in pairs)
    return [Claim(f"{text}: on average {exact:.4f} away, the plain one {plain:.4f}", nearer and exact < plain)]
