"""`tunefleet metrics`: the metrics of a task as a table, a plot or JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, out, print_json, say, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import TaskId, connect, one_task
from tunefleet.errors import NotFoundError
from tunefleet.schemas.api import MetricsView

_PREFERRED = ("reward", "eval_reward", "rewards/accuracies", "loss", "eval_loss", "learning_rate", "grad_norm", "epoch")
_MOST_COLUMNS = 6
_CHART_ROWS = 14
_DOTS = r"[\u2801-\u28ff]+"


@examples(
    "tunefleet metrics task-3f9a",
    "tunefleet metrics task-3f9a --plot --name loss --name eval_loss",
    "tunefleet metrics task-3f9a --max-points 0 --json > points.json",
)
def metrics(
    task: TaskId,
    *,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Metric to show, such as loss; may be repeated.")
    ] = None,
    series: Annotated[
        str, typer.Option("--series", help="Series to show; each additional Trainer in a script has its own.")
    ] = "train",
    plot: Annotated[bool, typer.Option("--plot", "-p", help="Plot curves.")] = False,
    max_points: Annotated[
        int, typer.Option("--max-points", min=0, help="Downsample to this many points; 0 for all.")
    ] = 400,
    as_json: Json = False,
) -> None:
    """Print or plot the metrics of a run."""
    with connect() as client:
        task = one_task(client, task)
        view = client.tasks.metrics(task, series=series, names=name, max_points=max_points or None)
        if name and not view.points:
            # Two points are enough to learn the names.
            known = client.tasks.metrics(task, series=series, max_points=2).names
            if known:
                raise NotFoundError(f"{task} has no metric {name[0]}.", hint=f"Available: {', '.join(known)}.")
    if as_json:
        print_json(view)
        return
    if not view.points:
        raise NotFoundError(
            f"{view.task_id} has no metrics yet.", hint=f"See its progress: `tunefleet follow {view.task_id}`."
        )
    names = name or [known for known in _PREFERRED if known in view.names] or list(view.names)
    if plot:
        _plot(view, names if name else [known for known in names if known in _plotted(view)])
    else:
        _print_table(view, names[:_MOST_COLUMNS])


def _plotted(view: MetricsView) -> set[str]:
    """Return the metrics plotted by default: the reward if there is one, else the loss."""
    return {"reward", "eval_reward"} if "reward" in view.names else {"loss", "eval_loss"}


def _plot(view: MetricsView, names: list[str]) -> None:
    for wanted in names or list(view.names)[:1]:
        points = [(point.step, value) for point in view.points if (value := numbers(point.values, wanted)) is not None]
        drawn = curve(points, title=wanted, width=min(out().width, 100), height=_CHART_ROWS)
        say(
            drawn
            if drawn.plain
            else Text(f"{wanted}: one point, {formatting.number(points[0][1])}" if points else wanted)
        )


def _print_table(view: MetricsView, names: list[str]) -> None:
    listing = table("step", *names, right=("step", *names))
    for point in view.points:
        listing.add_row(str(point.step), *(formatting.number(point.values.get(wanted)) for wanted in names))
    say(listing)
    if view.total > len(view.points):
        say(f"{len(view.points)} of {view.total} points; --max-points 0 shows all.", style="dim")


Curve = Sequence[tuple[int, float]]


def curve(points: Curve, *, title: str, width: int, height: int) -> Text:
    """Draw one series."""
    # NaN and infinity would break the scale of the axis.
    good = [(step, value) for step, value in points if math.isfinite(value)]
    if len(good) < 2:
        return Text()
    import plotext  # imported here: it takes a fifth of the start time, and most commands plot nothing

    figure = plotext.figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height - 1)
    steps = [step for step, _ in good]
    signal = figure.signal(steps, [value for _, value in good], marker="braille")
    figure.draw(signal.lines())
    ticks = sorted({steps[0] + round(part * (steps[-1] - steps[0]) / 4) for part in range(5)})
    figure.ruler("x").ticks(ticks, [str(tick) for tick in ticks])
    text = Text(figure.build().string(colorless=True).rstrip())
    text.highlight_regex(_DOTS, "busy")
    head = Text(f"{title} ", style="dim")
    return head + Text("\n") + text


def numbers(values: Mapping[str, float | str], name: str) -> float | None:
    """Return a logged value as a number; `NaN` and infinities are `None`."""
    value = values.get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
