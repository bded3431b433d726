"""Partitions rows among the participants of a federation; deterministic.

A pure function of the number of rows, a column's values and a seed: each participant computes its own rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tunefleet.errors import DataError
from tunefleet.spec import SplitSpec

# Indices into the list of all rows, ascending.
Positions: TypeAlias = NDArray[np.int64]


def split(count: int, total: int, how: SplitSpec, values: Sequence[Any], seed: int) -> list[Positions]:
    """Partition rows.

    Raises:
        DataError: If a participant would get no row, or a value cannot be used to group rows.
    """
    if count < total:
        raise DataError(
            f"{count} rows cannot be split among {total} workers: each needs at least one.",
            hint="Add rows, or lower `federation.workers`.",
        )
    draw = np.random.default_rng(seed)
    if how.by == "iid":
        return [np.sort(part) for part in np.array_split(draw.permutation(count), total)]
    labels = _labels(values, how.column)
    if how.by == "column":
        return _whole_values(labels, total, how.column)
    assert how.alpha is not None, "the spec has it"
    return _uneven_mixtures(labels, total, how.alpha, draw)


def _labels(values: Sequence[Any], column: str | None) -> NDArray[np.int64]:
    """Return the number of each row's value, in the order of first occurrence."""
    known: dict[Hashable, int] = {}
    found = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        if value is not None and not isinstance(value, str | int | float):
            raise DataError(
                f"Row {row + 1} holds {type(value).__name__} in {column!r}, which cannot be used to split rows.",
                hint="Use a column of texts, numbers or booleans in `federation.split.column`.",
            )
        # True equals 1 in Python, but is another value here.
        found[row] = known.setdefault((type(value), value), len(known))
    return found


def _whole_values(labels: NDArray[np.int64], total: int, column: str | None) -> list[Positions]:
    """Give each value to the worker with the fewest rows so far, the most frequent values first."""
    sizes = Counter(labels.tolist())
    if len(sizes) < total:
        raise DataError(
            f"Column {column!r} holds {len(sizes)} different values, too few for {total} workers.",
            hint="Lower `federation.workers`, or name another column.",
        )
    rows = [0] * total
    owner = np.empty(len(sizes), dtype=np.int64)
    for label, size in sorted(sizes.items(), key=lambda each: (-each[1], each[0])):
        owner[label] = fewest = min(range(total), key=rows.__getitem__)
        rows[fewest] += size
    return [np.flatnonzero(owner[labels] == worker) for worker in range(total)]


def _uneven_mixtures(labels: NDArray[np.int64], total: int, alpha: float, draw: np.random.Generator) -> list[Positions]:
    """Give each worker the same number of rows, with values distributed by Dir(alpha * p); p is their frequency.

    As in Hsu, Qi, Brown 2019 (arXiv:1909.06335): rows are sampled without replacement, and the share of an exhausted
    value goes to the others.
    """
    left = np.bincount(labels)
    shares = left / left.sum()
    order = draw.permutation(len(labels))
    # The rows of each value in random order; each draw takes the next one.
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
    """Return how many rows of each value are sampled, `size` in total."""
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        available = left > taken
        weights = np.where(available, mixture, 0.0)
        if weights.sum() <= 0.0:  # no row of its values is left
            weights = np.where(available, left - taken, 0).astype(np.float64)
        more = draw.multinomial(missing, weights / weights.sum())
        taken = np.minimum(taken + more, left)
    return taken
