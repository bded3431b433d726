"""Choose the points of a series that a chart needs (largest triangle, three buckets; after Steinarsson 2013)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

# The shape of so many values decides; the others are shown at the same steps.
_DENSE_NAMES: Final = 3

# One value of each point in step order: NaN where a point lacks it, an infinity where it has one that is no number.
Column = NDArray[np.float64]


def downsample(columns: Mapping[str, Column], count: int, max_points: int) -> list[int]:
    """Choose at most `max_points` points that keep the shape of the series.

    First and last stay. Values that are logged seldom (an evaluation's) keep all their points where there is room.
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
    """Choose one index in each of `room` buckets between the first and the last point.

    It is the one that makes the largest triangle with the means of the buckets beside its own. Steinarsson takes the
    point that was chosen before instead of a mean; without that, all buckets are looked at together.
    """
    edges = 1 + np.arange(room + 1) * (count - 2) // room
    starts, bucket = edges[:-1], np.repeat(np.arange(room), np.diff(edges))
    # Bucket -1 is the first point alone, the last bucket the last one.
    middles = np.concatenate(([0.0], (edges[:-1] + edges[1:] - 1) / 2, [count - 1.0]))
    here, before, after = np.arange(1.0, count - 1), middles[bucket], middles[bucket + 2]
    total = np.zeros(count - 2)
    for curve in curves:
        inner = curve[1:-1]
        there = ~np.isnan(inner)
        sums = np.add.reduceat(np.where(there, inner, 0.0), starts - 1)
        counts = np.add.reduceat(there.astype(np.float64), starts - 1)
        means = np.divide(sums, counts, out=np.full(room, np.nan), where=counts > 0)
        means = np.concatenate((curve[:1], means, curve[-1:]))
        a, c = (np.where(np.isnan(side), inner, side) for side in (means[bucket], means[bucket + 2]))
        area = np.abs((before - after) * (inner - a) - (before - here) * (c - a))
        total += np.where(there, area, 0.0)
    largest = np.flatnonzero(total == np.maximum.reduceat(total, starts - 1)[bucket])
    _, first = np.unique(bucket[largest], return_index=True)
    return set((largest[first] + 1).tolist())
