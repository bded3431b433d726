"""Deal rows out to the workers of a federation: each row to one of them, the same at every call.

A pure function of the number of rows, what stands in a column, and a seed: every worker finds its own rows by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tunefleet.errors import DataError
from tunefleet.spec import SplitSpec

# Where in the list of all rows some of them are, in rising order.
Positions: TypeAlias = NDArray[np.int64]


def split(count: int, total: int, how: SplitSpec, values: Sequence[Any], seed: int) -> list[Positions]:
    """Deal out rows.

    Raises:
        DataError: If a worker would get none, or a value is none by which rows could be told apart.
    """
    if count < total:
        raise DataError(
            f"{count} rows cannot be dealt out to {total} workers: each needs one.",
            hint="Give more rows, or lower `federation.workers`.",
        )
    draw = np.random.default_rng(seed)
    if how.by == "iid":
        return [np.sort(part) for part in np.array_split(draw.permutation(count), total)]
    labels = _labels(values, how.column)
    if how.by == "column":
        return _whole_values(labels, total, how.column)
    assert how.alpha is not None, "the spec asks for it"
    return _uneven_mixtures(labels, total, how.alpha, draw)


def _labels(values: Sequence[Any], column: str | None) -> NDArray[np.int64]:
    """Return for each row the number of its value, counted in the order in which they come first."""
    known: dict[Hashable, int] = {}
    found = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        if value is not None and not isinstance(value, str | int | float):
            raise DataError(
                f"Row {row + 1} holds {type(value).__name__} in {column!r}, by which rows cannot be dealt out.",
                hint="Name a column of texts, numbers, or true and false in `federation.split.column`.",
            )
        # True equals 1, and is another value.
        found[row] = known.setdefault((type(value), value), len(known))
    return found


def _whole_values(labels: NDArray[np.int64], total: int, column: str | None) -> list[Positions]:
    """Give each value to the worker that has the fewest rows by then, the most frequent values first."""
    sizes = Counter(labels.tolist())
    if len(sizes) < total:
        raise DataError(
            f"The column {column!r} holds {len(sizes)} different values, too few for {total} workers.",
            hint="Lower `federation.workers`, or name another column.",
        )
    rows = [0] * total
    owner = np.empty(len(sizes), dtype=np.int64)
    for label, size in sorted(sizes.items(), key=lambda each: (-each[1], each[0])):
        owner[label] = fewest = min(range(total), key=rows.__getitem__)
        rows[fewest] += size
    return [np.flatnonzero(owner[labels] == worker) for worker in range(total)]


def _uneven_mixtures(labels: NDArray[np.int64], total: int, alpha: float, draw: np.random.Generator) -> list[Positions]:
    """Give each worker equally many rows, whose values are mixed as Dir(alpha * p) says; p is how often each is.

    As in Hsu, Qi, Brown 2019 (arXiv:1909.06335): rows are drawn without returning them, and a value of which none is
    left gives its share to the others.
    """
    left = np.bincount(labels)
    shares = left / left.sum()
    order = draw.permutation(len(labels))
    # The rows of each value in random order; who draws one takes the next.
    stock = [order[labels[order] == label] for label in range(len(left))]
    found = []
    for size in (len(part) for part in np.array_split(order, total)):
        taken = _drawn(left, draw.dirichlet(alpha * shares), size, draw)
        picked = [rows[len(rows) - left[label] :][: taken[label]] for label, rows in enumerate(stock)]
        left = left - taken
        found.append(np.sort(np.concatenate(picked)))
    return found


def _drawn(
    left: NDArray[np.int64], mixture: NDArray[np.float64], size: int, draw: np.random.Generator
) -> NDArray[np.int64]:
    """Return how many rows of each value are drawn, `size` in all."""
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        there = left > taken
        weights = np.where(there, mixture, 0.0)
        if weights.sum() <= 0.0:  # nothing that it wants is left
            weights = np.where(there, left - taken, 0).astype(np.float64)
        more = draw.multinomial(missing, weights / weights.sum())
        taken = np.minimum(taken + more, left)
    return taken
