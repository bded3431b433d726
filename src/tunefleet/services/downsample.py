"""Choose the points of a series that a chart needs (largest triangle, three buckets; Steinarsson 2013)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

_DENSE_NAMES: Final = 3
"""The shape of so many values decides; the others are shown at the same steps."""


Values = Mapping[str, float | str]


def downsample(points: Sequence[Values], names: Sequence[str], max_points: int) -> list[int]:
    """Choose at most `max_points` points that keep the shape of the series.

    First and last stay. Values that are logged seldom (an evaluation's) keep all their points where there is room.

    Args:
        points: The values of each point, in step order.
        names: The values in them.
        max_points: At least 1.

    Returns:
        Indices of the points, ascending.
    """
    if len(points) <= max_points:
        return list(range(len(points)))
    if max_points < 3:
        return list(range(len(points) - max_points, len(points)))
    where = {name: [index for index, values in enumerate(points) if name in values] for name in names}
    kept = {0, len(points) - 1}
    for seldom in sorted(where.values(), key=len):
        if len(seldom) <= max_points // 4 and len(kept.union(seldom)) <= max_points // 2:
            kept.update(seldom)
    dense = sorted(
        (n for n in names if len(where[n]) > max_points // 4), key=lambda n: (n != "loss", -len(where[n]), n)
    )
    curves = [_scaled(points, name) for name in dense[:_DENSE_NAMES]]
    kept |= _largest_triangles(curves, len(points), max_points - len(kept))
    return sorted(kept)


def _scaled(points: Sequence[Values], name: str) -> list[float | None]:
    numbers = [_number(values.get(name)) for values in points]
    finite = [number for number in numbers if number is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    return [None if number is None else (number - low) / span for number in numbers]


def _number(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _largest_triangles(curves: Sequence[Sequence[float | None]], count: int, room: int) -> set[int]:
    """Choose one index in each of `room` buckets between the first and the last point."""
    chosen: set[int] = set()
    previous = 0
    for bucket in range(room):
        start = 1 + bucket * (count - 2) // room
        end = 1 + (bucket + 1) * (count - 2) // room
        following = min(end + max(1, (count - 2) // room) // 2, count - 1)
        if start < end:
            previous = max(range(start, end), key=partial(_area, curves, previous, following))
            chosen.add(previous)
    return chosen


def _area(curves: Sequence[Sequence[float | None]], before: int, after: int, here: int) -> float:
    total = 0.0
    for curve in curves:
        a, b, c = curve[before], curve[here], curve[after]
        if b is not None:
            a, c = b if a is None else a, b if c is None else c
            total += abs((before - after) * (b - a) - (before - here) * (c - a))
    return total
