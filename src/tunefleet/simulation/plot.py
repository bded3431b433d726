"""SVG plots of a report; needs matplotlib from the extra `examples`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefleet import errors
from tunefleet.errors import InputError, MachineError
from tunefleet.simulation.curves import Series
from tunefleet.simulation.load_report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MIB = 1 << 20


def check(file: Path) -> None:
    """Check that a plot can be written, before the measurement starts.

    Raises:
        MachineError: If matplotlib is not installed.
        InputError: If the file cannot be written as SVG.
    """
    if find_spec("matplotlib") is None:
        raise MachineError(
            "A plot needs matplotlib, which is not installed.", hint=f"Install it: {errors.install_command('examples')}"
        )
    if file.suffix.lower() != ".svg":
        raise InputError(f"{file} is not an SVG file name.", hint="Use a name that ends in .svg.")
    if not file.absolute().parent.is_dir():
        raise InputError(f"The folder of {file} does not exist.", hint="Create it, or choose another.")


def draw_load(report: Report, file: Path) -> None:
    """Plot the resource use of one load over time."""
    from matplotlib.figure import Figure  # noqa: PLC0415 -- only needed for plots

    figure = Figure(figsize=(8, 7), layout="constrained")
    rows: list[tuple[str, list[tuple[float, float]]]] = [
        ("server memory, MiB", [(s.at_s, s.rss_bytes / _MIB) for s in report.samples if s.rss_bytes]),
        ("server CPU, cores", [(s.at_s, s.cpu_share) for s in report.samples if s.cpu_share is not None]),
        ("ended tasks", [(s.at_s, float(s.ended)) for s in report.samples]),
    ]
    for number, (name, points) in enumerate(rows, 1):
        axes = figure.add_subplot(len(rows), 1, number)
        axes.plot([x for x, _ in points], [y for _, y in points])
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
    figure.supxlabel("seconds")
    _save(figure, f"{report.workers:,} workers, {report.tasks:,} tasks", file)


def draw_series(found: Series, file: Path) -> None:
    """Plot each cost over the loads."""
    from matplotlib.figure import Figure  # noqa: PLC0415 -- only needed for plots

    columns = 2
    rows = -(-len(found.curves) // columns)
    figure = Figure(figsize=(10, 2.6 * rows), layout="constrained")
    for number, curve in enumerate(found.curves, 1):
        axes = figure.add_subplot(rows, columns, number)
        axes.plot(curve.loads, curve.values, marker="o")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        grows = "" if curve.exponent is None else f" (∝ load^{curve.exponent:.2f})"
        axes.set_title(f"{curve.name.replace('_', ' ')}{grows}", fontsize="small")
        axes.set_xlabel(found.by)
    _save(figure, "Cost of a load", file)


def _save(figure: Figure | Any, title: str, file: Path) -> None:
    figure.suptitle(title)
    try:
        figure.savefig(file, format="svg")
    except OSError as error:
        raise MachineError(
            f"{file} cannot be written: {error.strerror or error}.", hint="Choose another file with --plot."
        ) from error
