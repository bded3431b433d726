"""Norms of updates and distances between them, measured on products, whatever basis their factors are in.

A distance between factors is not a distance between updates: (B R)(R⁻¹ A) is the same update for every R. Distances
between products cost no more, because they only need matrices of the size of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunefleet.federation.aggregation.blocks import BLOCK, spans
from tunefleet.federation.aggregation.sources import Source
from tunefleet.federation.aggregation.stacks import stack_of
from tunefleet.federation.floats import Buffers, Wide


def squared_norms_and_distances(sources: Sequence[Source]) -> tuple[Wide, Wide]:
    """Measure updates over all layers, including fully trained ones.

    Args:
        sources: The adapters; ranks and alphas may differ.

    Returns:
        The squared Frobenius norm of each adapter's scale · B · A over all layers (fully trained layers do not count,
        because their base is unknown here), and the squared distance of each pair, in which they do.
    """
    count = len(sources)
    inner, buffers = np.zeros((count, count)), Buffers()
    for module in sources[0].parts.layers:
        stack = stack_of(sources, module, [1.0] * count, buffers)
        inner += stack.products(stack.grams())
    norms = np.diag(inner).copy()
    inner += _whole(sources)
    square = np.diag(inner)
    apart = np.maximum(square[:, None] + square[None, :] - 2 * inner, 0.0)
    np.fill_diagonal(apart, 0.0)
    return norms, apart


def _whole(sources: Sequence[Source]) -> Wide:
    """Return the inner products of the fully trained tensors."""
    inner = np.zeros((len(sources), len(sources)))
    first = sources[0]
    names = first.parts.whole
    block = max(1024, BLOCK * 8 // max(8, len(sources)))
    rows = np.empty((len(sources), block), np.float32)
    for name, start, stop in spans({name: first.file.tensors[name].size for name in names}, block):
        for source, row in zip(sources, rows, strict=True):
            source.file.read(source.file.tensors[name], start, row[: stop - start])
        part = rows[:, : stop - start].astype(np.float64)
        inner += part @ part.T
    return inner
