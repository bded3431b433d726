"""Human-readable numbers and times; pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from tunefleet.observability import step_line

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(size_bytes: float | None) -> str:
    """Return a size, such as `4.2 MiB`."""
    if size_bytes is None:
        return "–"
    value = float(size_bytes)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Return a duration, such as `3m 20s`."""
    return "–" if seconds is None or not math.isfinite(seconds) else step_line.duration(seconds)


def step_time(seconds: float | None) -> str:
    """Return how long a step takes, such as `151ms`."""
    if seconds is None:
        return "–"
    if seconds < 0.01:
        return f"{seconds * 1000:.1f}ms"
    return f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.2f}s"


def age(moment: datetime | None, *, now: datetime | None = None) -> str:
    """Return the time since a moment, such as `3m`."""
    if moment is None:
        return "–"
    seconds = max(0.0, ((now or datetime.now(UTC)) - moment).total_seconds())
    for limit, unit, letter in ((60, 1, "s"), (3600, 60, "m"), (86_400, 3600, "h")):
        if seconds < limit:
            return f"{seconds // unit:.0f}{letter}"
    return f"{seconds // 86_400:.0f}d"


def number(value: float | str | None) -> str:
    """Return a measured value with its significant digits."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if 1 <= abs(value) < 100 else f"{value:.4g}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as `2 tasks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
