"""Terminal output of a simulation: a progress bar, then the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from tunefleet.cli.console import err, facts, out, table
from tunefleet.cli.tasks import metrics
from tunefleet.simulation.curves import Curve, Series
from tunefleet.simulation.load_report import Report, Spread
from tunefleet.simulation.load_run import Progress
from tunefleet.simulation.plan import Plan

_CHART_ROWS = 10
_MIB = 1 << 20
_DRAWN = ("decisions_per_s", "server_rss_mib")


@contextmanager
def progress(plan: Plan, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a load; nothing if standard error is not a terminal."""
    if quiet or not err().is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[more]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Bar(*columns, console=err(), transient=True) as bar:
        shown = bar.add_task(f"{plan.workers:,} workers", total=plan.tasks, more="")

        def update(now: Progress) -> None:
            bar.update(shown, completed=now.ended, more=f"{now.submitted:,} submitted, {now.offered:,} offered")

        yield update


def load(report: Report) -> RenderableType:
    """Return the report of one load."""
    server, redis, generator = report.server, report.redis, report.generator
    latencies = table("latency", "count", "p50", "p95", "p99", right=("count", "p50", "p95", "p99"))
    for name, spread in (
        ("submit to offer", report.submit_to_offer),
        ("offer to accept", report.offer_to_accept),
        ("submit to finish", report.submit_to_finish),
        ("exchange with messages", report.exchange),
    ):
        latencies.add_row(name, f"{spread.count:,}", *_three(spread))
    rows: list[tuple[str, RenderableType | None]] = [
        ("load", f"{report.workers:,} workers, {report.tasks:,} tasks, {report.link}{_renews(report)}"),
        ("ended", f"{report.ended} after {report.took_s:.1f} s"),
        ("tasks", _tasks(report)),
        ("placement", _rate(report.decisions_per_s, "decisions")),
        ("completions", _rate(report.finished_per_s, "tasks")),
        ("exchanges", f"{report.exchanges_per_s:,.1f}/s, {report.renewals_per_s:,.1f}/s are renewals"),
        ("transferred", f"{_mib(report.link_up_bytes)} up, {_mib(report.link_down_bytes)} down"),
        ("server memory", _range(server.rss_start_bytes, server.rss_max_bytes)),
        ("server CPU", None if server.cpu_share is None else f"{server.cpu_share:.2f} cores, "
         + (f"{server.cpu_per_task_ms:.2f} ms per task" if server.cpu_per_task_ms is not None else "no task ended")),
        ("database", _range(server.database_start_bytes, server.database_bytes)),
        ("disk writes", None if server.written_bytes is None else _mib(server.written_bytes)),
        ("redis", None if redis is None else f"{redis.commands:,} commands, {_mib(redis.input_bytes)} in, "
         f"{_mib(redis.output_bytes)} out, {_mib(redis.memory_bytes)} memory"),
        ("simulated workers", f"{generator.processes} processes, busiest {generator.cpu_share:.2f} cores, "
         f"event loop lag {generator.lag.p95_ms or 0:.1f} ms (p95)"),
    ]  # fmt: skip
    warnings = [Text(f"! {warning}", style="warn") for warning in report.warnings]
    return Group(facts(rows), Text(), latencies, *warnings)


def series(found: Series) -> RenderableType:
    """Return the report of several loads, and how the costs grow."""
    names = [curve.name for curve in found.curves]
    costs = table("cost", *(f"{one.workers:,}" for one in found.loads), "per 1,000", "grows with", right=tuple(
        [*(f"{one.workers:,}" for one in found.loads), "per 1,000", "grows with"]
    ))  # fmt: skip
    for curve in found.curves:
        at = dict(zip(curve.loads, curve.values, strict=True))
        cells = [f"{at[one.workers]:,.2f}" if one.workers in at else "–" for one in found.loads]
        power = "–" if curve.exponent is None else f"load^{curve.exponent:.2f}"
        costs.add_row(curve.name.replace("_", " "), *cells, f"{curve.per_1000:+,.2f}", power)
    totals = [Text(f"{one.workers:,} workers: {_tasks(one).plain}") for one in found.loads]
    drawn = [_drawn(curve) for curve in found.curves if curve.name in _DRAWN and names]
    warnings = [Text(f"! {one.workers:,}: {each}", style="warn") for one in found.loads for each in one.warnings]
    return Group(costs, Text(), *totals, Text(), *drawn, *warnings)


def _drawn(curve: Curve) -> Text:
    points = list(zip(curve.loads, curve.values, strict=True))
    title = f"{curve.name.replace('_', ' ')} over workers"
    return metrics.curve(points, title=title, width=min(out().width, 100), height=_CHART_ROWS)


def _tasks(report: Report) -> Text:
    good = not report.lost and not report.doubled
    words = f"{report.completed:,} completed, {report.lost:,} lost, {report.doubled:,} completed twice"
    more = [
        (report.for_nothing, "run by a worker that was declared lost"),
        (report.left, "left"),
        (report.cancelled, "cancelled"),
        (report.retried, "extra attempts"),
    ]
    words += "".join(f", {count:,} {what}" for count, what in more if count)
    return Text(words, style="good" if good else "bad")


def _renews(report: Report) -> str:
    return "" if report.renewals else ", reduced renewals"


def _three(spread: Spread) -> tuple[str, str, str]:
    shown = ["–" if each is None else f"{each:,.1f} ms" for each in (spread.p50_ms, spread.p95_ms, spread.p99_ms)]
    return shown[0], shown[1], shown[2]


def _rate(per_s: float | None, what: str) -> str | None:
    return None if per_s is None else f"{per_s:,.1f} {what}/s"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.1f} MiB"


def _range(start: int | None, end: int | None) -> str | None:
    return None if start is None or end is None else f"{_mib(start)} to {_mib(end)}"
