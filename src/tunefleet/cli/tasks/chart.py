"""Curves in the terminal, drawn by plotext."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

Curve = Sequence[tuple[int, float]]
_DOTS = r"[\u2801-\u28ff]+"


def curve(points: Curve, *, title: str, width: int, height: int) -> Text:
    """Draw one series.

    Args:
        points: Step and value; values that are not finite are left out.
        title: Stands above the chart.
        width: Columns.
        height: Rows, the title's among them.

    Returns:
        The chart; empty if there are fewer than two points to draw.
    """
    good = [(step, value) for step, value in points if math.isfinite(value)]
    if len(good) < 2:
        return Text()
    import plotext  # only now: a fifth of the start of a command, most of which draw nothing

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
    """Return a value that was logged, as a number; `NaN` and infinities are `None`."""
    value = values.get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
