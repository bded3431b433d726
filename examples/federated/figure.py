"""The figure: the loss of every arm on held-out rows, and the errors of the averages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from findings import Line
from matplotlib.figure import Figure

TOGETHER, APART, GATHERED = "#1f6feb", "#8c959f", "#2da44e"


def draw(lines: Sequence[Line], errors: Mapping[int, Sequence[tuple[float, float]]], file: Path) -> None:
    """Draw it as a PNG.

    Args:
        lines: Of the table, the federation first.
        errors: By seed, for each round: what the federation's average got wrong, and what the plain one does.
        file: Where to.
    """
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _losses(left, lines)
    _errors(right, errors)
    figure.savefig(file, dpi=110)


def _losses(axes: Any, lines: Sequence[Line]) -> None:
    together = sum(lines[0].losses) / len(lines[0].losses)
    for at, line in enumerate(lines):
        colour = TOGETHER if "federation" in line.arm else APART if "alone" in line.arm else GATHERED
        axes.plot(line.losses, [at] * len(line.losses), "o", color=colour, alpha=0.45, markersize=5)
        mean = sum(line.losses) / len(line.losses)
        # The bar shows the error of the difference to the federation, which is the claim; seeds differ by more.
        spread = 2 * line.behind.error if line.behind is not None else None
        axes.errorbar(mean, at, xerr=spread, fmt="|", color=colour, markersize=14, capsize=4)
    axes.axvline(together, color=TOGETHER, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(lines)), [line.arm for line in lines])
    axes.invert_yaxis()
    axes.set_xlabel("eval loss, nats a token (dots: seeds; bars: ± 2 SE of the difference)")
    axes.spines[["top", "right"]].set_visible(False)


def _errors(axes: Any, errors: Mapping[int, Sequence[tuple[float, float]]]) -> None:
    for at, (name, colour) in enumerate((("exact average", TOGETHER), ("plain average", APART))):
        for seed, rounds in errors.items():
            numbers = range(1, len(rounds) + 1)
            label = name if seed == 0 else None
            axes.plot(numbers, [pair[at] for pair in rounds], "o-", color=colour, alpha=0.7, label=label)
    rounds = max(len(found) for found in errors.values())
    axes.set_xticks(range(1, rounds + 1))
    axes.set_xlabel("round")
    axes.set_ylabel("error of the product")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
