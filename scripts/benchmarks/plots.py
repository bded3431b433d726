"""The plots of the page, as SVG files; the same figures give the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.benchmarks.page import Found, plots_of


def draw(found: Found, folder: Path) -> None:
    """Draw every plot anew; a picture that none of them is, is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    # Ids and dates would differ from run to run.
    with mpl.rc_context({"svg.hashsalt": "tunefleet", "svg.fonttype": "none"}):
        for name, result in found.items():
            for number, plot in enumerate(plots_of(result), 1):
                figure = _bars(plot) if "bars" in plot else _lines(plot)
                figure.savefig(folder / f"{name}-{number}.svg", format="svg", metadata={"Date": None})


def _axes(plot: dict[str, Any], height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(plot["title"], fontsize="medium")
    axes.set_xlabel(plot["x_label"])
    return figure, axes


def _lines(plot: dict[str, Any]) -> Figure:
    figure, axes = _axes(plot, 4)
    for line in plot["lines"]:
        axes.plot(line["x"], line["y"], marker="o", label=line["name"])
    axes.set_ylabel(plot["y_label"])
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _bars(plot: dict[str, Any]) -> Figure:
    figure, axes = _axes(plot, 1 + 0.4 * len(plot["bars"]))
    for at, (name, of) in enumerate(reversed(plot["bars"])):
        spread = [[max(0.0, of["median"] - of["low"])], [max(0.0, of["high"] - of["median"])]]
        axes.barh(at, of["median"], xerr=spread, color="tab:blue" if name == "ours" else "lightgray", capsize=3)
    axes.set_yticks(range(len(plot["bars"])), [name for name, _ in reversed(plot["bars"])])
    axes.set_xlim(left=0)
    return figure
