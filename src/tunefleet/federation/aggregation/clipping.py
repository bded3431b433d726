"""Norm clipping: no update changes the global adapter by more than a given length.

The length of a change is the Frobenius norm of its change of scale · B · A over all layers, and of fully trained
layers. Before the first version there is no adapter to change: then it is the length of the update itself, and fully
trained layers are not clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tunefleet.federation.aggregation.blocks import BLOCK, spans
from tunefleet.federation.aggregation.sources import Source
from tunefleet.federation.aggregation.stacks import Piece, Stack, squared_norms_and_distances
from tunefleet.federation.floats import Buffers, Wide

_HALVINGS: Final = 60


def lengths(sources: Sequence[Source], previous: Source | None) -> list[float]:
    """Return the length of each update's change of the global adapter.

    Args:
        previous: The global adapter; `None` before the first version.
    """
    if previous is None:
        squares = [squared_norms_and_distances([source])[0][0] for source in sources]
    else:
        # Each one separately with the global adapter: all together would cost the square of their number.
        squares = [squared_norms_and_distances([source, previous])[1][0, 1] for source in sources]
    return [math.sqrt(square) for square in squares]


def kept_of_products(found: Sequence[float], most: float) -> list[float]:
    """Return which part of each change to keep if products are averaged, where the length is proportional.

    Args:
        most: Maximum length.
    """
    return [1.0 if length <= most else most / length for length in found]


def kept_of_factors(
    sources: Sequence[Source], previous: Source | None, found: Sequence[float], most: float
) -> list[float]:
    """Return which part of each change to keep if factors are averaged, so that the product's change is short enough.

    A part t of the way from (B₀, A₀) to (B, A) changes the product by t X + t² Y with X = δB A₀ + B₀ δA and
    Y = δB δA; its squared length is a polynomial of t with three coefficients.

    Args:
        previous: The global adapter of the same rank; `None` before the first version: then only B is scaled.
        found: The lengths of the complete changes.
        most: Maximum length.
    """
    if previous is None:
        return kept_of_products(found, most)
    return [
        1.0 if length <= most else _part(*_polynomial(source, previous), most * most)
        for source, length in zip(sources, found, strict=True)
    ]


def _part(straight: float, mixed: float, bent: float, most: float) -> float:
    low, high = 0.0, 1.0
    # Bisection: sixty halvings exceed the precision of float64.
    for _ in range(_HALVINGS):
        t = (low + high) / 2
        if t * t * straight + 2 * t**3 * mixed + t**4 * bent <= most:
            low = t
        else:
            high = t
    return low


def _polynomial(source: Source, previous: Source) -> tuple[float, float, float]:
    """Return ‖X‖², ⟨X, Y⟩ and ‖Y‖² over all layers."""
    straight = mixed = bent = 0.0
    buffers = Buffers()
    for module, layer in source.parts.layers.items():
        before = previous.parts.layers[module]
        stack = Stack(
            [
                Piece(source.worker, source.file, layer, layer.scale),
                Piece(previous.worker, previous.file, before, before.scale),
            ],
            buffers,
        )
        left, right = (_differences(gram, layer.rank) for gram in stack.grams())
        rank = layer.rank
        # The first half of each is the change, the second the global adapter.
        dd_l, dg_l, gg_l = left[:rank, :rank], left[:rank, rank:], left[rank:, rank:]
        dd_r, dg_r, gg_r = right[:rank, :rank], right[:rank, rank:], right[rank:, rank:]
        straight += float(np.vdot(dd_l, gg_r) + np.vdot(gg_l, dd_r) + 2 * np.vdot(dg_l, dg_r.T))
        mixed += float(np.vdot(dd_l, dg_r.T) + np.vdot(dg_l.T, dd_r))
        bent += float(np.vdot(dd_l, dd_r))
    return straight + _whole_change(source, previous), mixed, bent


def _differences(gram: Wide, rank: int) -> Wide:
    """Return the Gram matrix of (update - global, global) from that of (update, global)."""
    change = np.eye(2 * rank)
    change[rank:, :rank] = -np.eye(rank)
    turned: Wide = change.T @ gram @ change
    return turned


def _whole_change(source: Source, previous: Source) -> float:
    total = 0.0
    new, old = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for name, start, stop in spans({name: source.file.tensors[name].size for name in source.parts.whole}):
        size = stop - start
        source.file.read(source.file.tensors[name], start, new[:size])
        previous.file.read(previous.file.tensors[name], start, old[:size])
        change = (new[:size] - old[:size]).astype(np.float64)
        total += float(change @ change)
    return total
