"""How long updates are and how far they lie apart, measured between products, whatever basis their factors are in.

A distance between factors is none between updates: (B R)(R⁻¹ A) is the same update for every R. Between products it
costs no more, as only matrices of the size of the ranks are needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunefleet.federation.aggregation.blocks import BLOCK, spans
from tunefleet.federation.aggregation.sources import Source
from tunefleet.federation.aggregation.stacks import stack_of
from tunefleet.federation.floats import Room, Wide


def squared_norms_and_distances(sources: Sequence[Source]) -> tuple[Wide, Wide]:
    """Measure updates over all layers, those that are trained whole included.

    Args:
        sources: The adapters; ranks and alphas may differ.

    Returns:
        Of each adapter the squared Frobenius norm of scale · B · A over all layers (of layers that are trained whole
        the base is not known here, so they do not count); and of each pair the squared distance, in which they do.
    """
    count = len(sources)
    inner, room = np.zeros((count, count)), Room()
    for module in sources[0].parts.layers:
        stack = stack_of(sources, module, [1.0] * count, room)
        inner += stack.products(stack.grams())
    norms = np.diag(inner).copy()
    inner += _whole(sources)
    square = np.diag(inner)
    apart = np.maximum(square[:, None] + square[None, :] - 2 * inner, 0.0)
    np.fill_diagonal(apart, 0.0)
    return norms, apart


def _whole(sources: Sequence[Source]) -> Wide:
    """Return the inner products of the tensors that are trained whole."""
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
