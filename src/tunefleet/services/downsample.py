"""Choose the points of a series that a chart needs (largest triangle, three buckets; Steinarsson 2013)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_DENSE_NAMES: Final = 3
"""The shape of so many values decides; the others are shown at the same steps."""

Column = NDArray[np.float64]
"""One value of each point in step order: NaN where a point lacks it, an infinity where it has one that is no number."""


def downsample(columns: Mapping[str, Column], count: int, max_points: int) -> list[int]:
    """Choose at most `max_points` points that keep the shape of the series.

    First and last stay. Values that are logged seldom (an evaluation's) keep all their points where there is room.

    Args:
        columns: The values by name.
        count: How many points there are.
        max_points: At least 1.

    Returns:
        Indices of the points, ascending.
    """
    if count <= max_points:
        return list(range(count))
    if max_points < 3:
        return list(range(count - max_points, count))
    where = {name: np.flatnonzero(~np.isnan(column)) for name, column in columns.items()}
    kept = {0, count - 1}
    for seldom in sorted(where.values(), key=len):
        if len(seldom) <= max_points // 4 and len(kept.union(seldom.tolist())) <= max_points // 2:
            kept.update(seldom.tolist())
    dense = sorted(
        (n for n in columns if len(where[n]) > max_points // 4), key=lambda n: (n != "loss", -len(where[n]), n)
    )
    curves = [_scaled(columns[name]) for name in dense[:_DENSE_NAMES]]
    kept |= _largest_triangles(curves, count, max_points - len(kept))
    return sorted(kept)


def _scaled(column: Column) -> Column:
    numbers = np.where(np.isfinite(column), column, np.nan)
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    # Halves, so that the span of the greatest numbers is one too.
    return (numbers / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)


def _largest_triangles(curves: Sequence[Column], count: int, room: int) -> set[int]:
    """Choose one index in each of `room` buckets between the first and the last point."""
    chosen: set[int] = set()
    previous = 0
    for bucket in range(room):
        start = 1 + bucket * (count - 2) // room
        end = 1 + (bucket + 1) * (count - 2) // room
        following = min(end + max(1, (count - 2) // room) // 2, count - 1)
        if start < end:
            previous = start + int(np.argmax(_areas(curves, previous, following, start, end)))
            chosen.add(previous)
    return chosen


def _areas(curves: Sequence[Column], before: int, after: int, start: int, end: int) -> Column:
    here = np.arange(start, end, dtype=np.float64)
    total = np.zeros(end - start)
    for curve in curves:
        b = curve[start:end]
        a, c = (np.where(np.isnan(curve[end_of]), b, curve[end_of]) for end_of in (before, after))
        area = np.abs((before - after) * (b - a) - (before - here) * (c - a))
        total += np.where(np.isnan(b), 0.0, area)
    return total
