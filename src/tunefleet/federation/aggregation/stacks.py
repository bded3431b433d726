"""Stacked factors of one layer of several adapters, read in blocks, and their Gram matrices.

With L = [c₁B₁ … cₖBₖ] and R = [A₁; …; Aₖ] the weighted sum of products is L · R, and every inner product of two
products follows from Lᵀ L and R Rᵀ: ⟨B₁A₁, B₂A₂⟩ = tr((B₁ᵀ B₂)(A₂ A₁ᵀ)). Their size is the sum of the ranks.

Norms and distances are measured on products, because a distance between factors is not one between updates: (B R)(R⁻¹
A) is the same update for every R. They only need matrices of the size of the ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from tunefleet.errors import AdapterRefused, InputError
from tunefleet.federation.adapter import AdapterFile
from tunefleet.federation.aggregation.blocks import BLOCK, spans
from tunefleet.federation.aggregation.sources import Source
from tunefleet.federation.floats import Array, Buffers, Wide
from tunefleet.federation.layers import Layer

# Size of a block of stacked factors.
_MAX_BYTES: Final = 16 << 20
_MAX_WIDTH: Final = 4096
_WIDE_BYTES: Final = 1 << 20
"""Bytes converted to float64 at a time: they stay in the CPU cache, and products of fewer rows cost more."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One adapter's factors of a layer, and the coefficient of their product."""

    worker: str
    file: AdapterFile
    layer: Layer
    factor: float


class Stack:
    """Stacked factors of one layer of several adapters, in their stored types.

    A layer whose stacked factors fit into a block is read once, a larger one each time its blocks are requested.

    Args:
        buffers: Buffers to read into; not shared with another stack.

    Attributes:
        width: Sum of the ranks.
        starts: Start of each adapter's part.
        factors: Coefficient of each stacked column; belongs to L.
        widened: Rows of L or columns of R that are converted to float64 at a time.

    Raises:
        InputError: If the sum of the ranks is too large.
    """

    def __init__(self, pieces: Sequence[Piece], buffers: Buffers) -> None:
        self._pieces = pieces
        self.buffers = buffers
        ranks = [piece.layer.rank for piece in pieces]
        self.width = sum(ranks)
        self.starts = [sum(ranks[:place]) for place in range(len(ranks))]
        self.factors: Wide = np.repeat([piece.factor for piece in pieces], ranks)
        self.rows, self.columns = pieces[0].layer.rows, pieces[0].layer.columns
        if self.width > _MAX_WIDTH:
            raise InputError(
                f"The ranks of {len(pieces)} adapters sum to {self.width:,} in {pieces[0].layer.module}; the "
                "limit for averages "
                f"of products is {_MAX_WIDTH:,}.",
                hint="Set max_workers, use a smaller rank, or average factors (fedavg).",
            )
        self._step = max(64, _MAX_BYTES // (4 * self.width))
        self.widened = max(256, _WIDE_BYTES // (8 * self.width))
        self._left: Array | None = None
        self._right: Array | None = None

    def left(self) -> Iterator[tuple[int, Array]]:
        """Yield rows of L without the coefficients: index of the first one, and a block of rows × `width`."""
        if self._left is not None:
            yield 0, self._left
            return
        # Only as many rows as are converted to float64 at a time: they are still in the cache then.
        whole, step = self.rows <= self._step, min(self.widened, self.rows)
        buffer = self.buffers.floats("left", self.rows if whole else step, self.width)
        scratch = self.buffers.floats("part", step, max(piece.layer.rank for piece in self._pieces)).reshape(-1)
        for start in range(0, self.rows, step):
            first = start if whole else 0
            block = buffer[first : first + min(step, self.rows - start)]
            for piece, at in zip(self._pieces, self.starts, strict=True):
                rank = piece.layer.rank
                part = scratch[: len(block) * rank].reshape(len(block), rank)
                piece.file.read(piece.file.tensors[piece.layer.b], start * rank, part)
                block[:, at : at + rank] = part
            yield start, block
        if whole:
            self._left = buffer

    def right(self) -> Iterator[tuple[int, Array]]:
        """Yield columns of R: index of the first one, and a block of `width` × columns."""
        if self._right is not None:
            yield 0, self._right
            return
        step = min(self._step, self.columns)
        buffer = self.buffers.floats("right", self.width, step)
        for start in range(0, self.columns, step):
            count = min(step, self.columns - start)
            for piece, at in zip(self._pieces, self.starts, strict=True):
                part = buffer[at : at + piece.layer.rank, :count]
                piece.file.columns(piece.file.tensors[piece.layer.a], start, part)
            yield start, buffer[:, :count]
        if self.columns <= self._step:
            self._right = buffer

    def grams(self) -> tuple[Wide, Wide]:
        """Return Lᵀ L and R Rᵀ.

        Raises:
            AdapterRefused: If a factor is not finite.
        """
        left, right = np.zeros((self.width, self.width)), np.zeros((self.width, self.width))
        for _, rows in self.left():
            for at in range(0, len(rows), self.widened):
                wide = self.buffers.wide(rows[at : at + self.widened])
                left += wide.T @ wide
        for _, columns in self.right():
            for at in range(0, columns.shape[1], self.widened):
                wide = self.buffers.wide(columns[:, at : at + self.widened])
                right += wide @ wide.T
        self._check_finite("b", left)
        self._check_finite("a", right)
        left *= self.factors
        left *= self.factors[:, None]
        return left, right

    def _check_finite(self, side: Literal["a", "b"], gram: Wide) -> None:
        fine = np.isfinite(np.diag(gram))
        if fine.all():
            return
        place = bisect_right(self.starts, int(np.argmin(fine))) - 1
        piece = self._pieces[place]
        name = piece.layer.a if side == "a" else piece.layer.b
        raise AdapterRefused(
            f"The tensor {name!r} of {piece.worker!r} is not finite.",
            hint="Validate updates when they arrive.",
            tensor=name,
        )

    def products(self, grams: tuple[Wide, Wide]) -> Wide:
        """Return the inner products of the adapters' products, one row and column per adapter."""
        both = grams[0] * grams[1]
        sums: Wide = np.add.reduceat(np.add.reduceat(both, self.starts, axis=0), self.starts, axis=1)
        return sums


def stack_of(sources: Sequence[Source], module: str, factors: Sequence[float], buffers: Buffers) -> Stack:
    """Stack a layer's factors of several adapters.

    Args:
        factors: Coefficients of each scale · B · A.
        buffers: Buffers to read into.
    """
    layers = [source.parts.layers[module] for source in sources]
    return Stack(
        [
            Piece(source.worker, source.file, layer, layer.scale * factor)
            for source, layer, factor in zip(sources, layers, factors, strict=True)
        ],
        buffers,
    )


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
