"""Growth of the costs with the load: a linear and a power-law fit of the measurements, and their plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tunefleet import errors
from tunefleet.errors import InputError, MachineError
from tunefleet.schemas.base import Message
from tunefleet.simulation.load_report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Read = Callable[[Report], float | None]
_MIB: Final = 1 << 20


def _mib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / _MIB


# Costs that are plotted and fitted → how to read them from a report.
COSTS: Final[dict[str, Read]] = {
    "decisions_per_s": lambda one: one.decisions_per_s,
    "exchange_p95_ms": lambda one: one.exchange.p95_ms,
    "submit_to_offer_p95_ms": lambda one: one.submit_to_offer.p95_ms,
    "server_cpu_share": lambda one: one.server.cpu_share,
    "server_cpu_per_task_ms": lambda one: one.server.cpu_per_task_ms,
    "server_rss_mib": lambda one: _mib(one.server.rss_max_bytes),
    "database_mib": lambda one: _mib(one.server.database_bytes),
    "database_written_mib": lambda one: _mib(one.server.written_bytes),
    "redis_mib": lambda one: None if one.redis is None else _mib(one.redis.input_bytes + one.redis.output_bytes),
    "renewals_per_s": lambda one: one.renewals_per_s,
}


class Curve(Message):
    """One cost over the loads.

    Args:
        per_1000: Slope of the linear fit, per 1,000 more.
        exponent: Exponent of the power-law fit: 1 is proportional, 0 constant. None if a value is 0.
    """

    name: str
    loads: tuple[int, ...]
    values: tuple[float, ...]
    per_1000: float
    at_0: float
    exponent: float | None


class Series(Message):
    """Several loads, smallest first, and how the costs grow."""

    by: Literal["workers", "tasks"] = "workers"
    loads: tuple[Report, ...]
    curves: tuple[Curve, ...]


def series(loads: Sequence[Report], by: Literal["workers", "tasks"] = "workers") -> Series:
    """Fit the costs of several loads."""
    curves = tuple(curve for name in COSTS if (curve := _curve(name, loads, by)))
    return Series(by=by, loads=tuple(loads), curves=curves)


def _curve(name: str, loads: Sequence[Report], by: Literal["workers", "tasks"]) -> Curve | None:
    read = COSTS[name]
    points = [(one.tasks if by == "tasks" else one.workers, value) for one in loads if (value := read(one)) is not None]
    if len({load for load, _ in points}) < 2:
        return None
    sizes, values = tuple(x for x, _ in points), tuple(round(y, 4) for _, y in points)
    slope, start = _line(sizes, values)
    exponent = None
    if min(values) > 0:
        exponent = round(_line([math.log(x) for x in sizes], [math.log(y) for y in values])[0], 3)
    return Curve(
        name=name, loads=sizes, values=values, per_1000=round(1e3 * slope, 4), at_0=round(start, 4),
        exponent=exponent,
    )  # fmt: skip


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return slope and intercept of the least-squares line."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return slope, mean_y - slope * mean_x


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
