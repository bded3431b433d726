"""The exact average of updates: the mean of their products scale · B · A, which differs from the mean of the factors.

The sum of products of low rank has up to the sum of their ranks. There are three outputs: the nearest adapter of a
given rank (with the error of each layer), all factors stacked, or the nearest adapter and the residual as a second
adapter that is merged into the base model.

Sources: stacking, Wang et al. 2024 (FLoRA), https://arxiv.org/abs/2409.05976; residual in the base, Singhal et al.
2024 (FedEx-LoRA), https://arxiv.org/abs/2410.09432; one rank by SVD, Bai et al. 2024 (FlexLoRA),
https://arxiv.org/abs/2402.11505.

The best rank-r adapter for the sum comes from small matrices only. The sum P = Σ cᵢ Bᵢ Aᵢ is L · R with L = [c₁B₁ …
cₖBₖ] and R = [A₁; …; Aₖ]. Its singular values and vectors follow from the Gram matrices Lᵀ L and R Rᵀ, whose size is
the sum of the ranks; P itself, which has the size of the base model's weight, is never computed. The Gram matrices are
float64, so that squaring loses nothing of float32's precision.

Of all pairs with the best product, the one whose A is nearest to the average of the As is chosen: workers with the
same start get factors in the basis that their optimizers know, and a single update is returned unchanged.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from tunefleet.federation.adapter import AdapterConfig
from tunefleet.federation.aggregation.averaging_job import LayerReport
from tunefleet.federation.aggregation.blocks import THREADS
from tunefleet.federation.aggregation.sources import Source
from tunefleet.federation.aggregation.stacks import Stack, stack_of
from tunefleet.federation.floats import Array, Buffers, Wide
from tunefleet.federation.layers import Layer
from tunefleet.federation.safetensors_writer import AdapterWriter

# Sum of ranks up to which two layers are processed in parallel; beyond it memory matters more than time.
_SMALL: Final = 512
# If the workers' A are nearly equal, their differences contain large terms that cancel: above this ratio the new A is
# summed in float64.
_CANCELLED: Final = 4.0
# Squares below this fraction of the largest are below float32's precision.
_JITTER: Final = 1e-13
_TIE: Final = 1e-13
_FLATTEST: Final = 0.02
"""Lower bound for a direction of the new A relative to the longest: a shorter one would make its B, and its float32
rounding error, longer by the same factor."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a sum.

    Args:
        sources: The adapters, including the global one if changes were clipped.
        shares: Coefficients of the products.
        like: The adapter that defines basis and names of the output.
    """

    sources: Sequence[Source]
    shares: Sequence[float]
    like: Source

    def stack(self, module: str, buffers: Buffers) -> Stack:
        """Return a layer's stacked, weighted factors."""
        return stack_of(self.sources, module, self.shares, buffers)

    def widths(self) -> dict[str, int]:
        """Return the sum of the ranks by module."""
        return {
            module: sum(source.parts.layers[module].rank for source in self.sources)
            for module in self.like.parts.layers
        }

    def mean(self, module: str, rank: int) -> Wide:
        """Return the coefficients of the stacked A's rows in the average A of the adapters with this rank."""
        ranks = [source.parts.layers[module].rank for source in self.sources]
        total = sum(share for share, each in zip(self.shares, ranks, strict=True) if each == rank)
        if total <= 0:
            return np.zeros((0, sum(ranks)))
        parts = [
            np.eye(rank) * (share / total) if each == rank else np.zeros((rank, each))
            for share, each in zip(self.shares, ranks, strict=True)
        ]
        return np.concatenate(parts, axis=1)

    def weights(self, module: str) -> Wide:
        """Return the weight of each stacked row."""
        ranks = [source.parts.layers[module].rank for source in self.sources]
        return np.repeat(np.maximum(self.shares, 1e-9), ranks)


def to_rank(
    terms: Terms, config: AdapterConfig, written: AdapterWriter, residual: AdapterWriter | None
) -> Iterator[tuple[str, LayerReport]]:
    """Write the nearest adapter, and the residual if requested; yields each layer's report.

    Args:
        terms: The terms of the sum.
        config: The output config with rank and scale of each layer.
        residual: Output of the unscaled residual.
    """

    def one(module: str, buffers: Buffers) -> LayerReport:
        layer = terms.like.parts.layers[module]
        rank = written.tensors[layer.a].shape[0]
        stack = terms.stack(module, buffers)
        mean, weights = terms.mean(module, rank), terms.weights(module)
        found = truncate(*stack.grams(), rank, mean, weights, tail=residual is not None)
        mix = _Mix(found.left, found.right, wide=found.cancelled > _CANCELLED)
        _write(stack, layer, written, mix, config.scale_of(module, rank))
        if rank > stack.width:
            _fill_up(written, layer, stack.width, found)
        if residual is not None:
            _write(stack, layer, residual, _Mix(found.tail_left, found.tail_right), 1.0)
        return LayerReport(rank, found.norm, found.error)

    yield from _each_layer(terms, one)


def side_by_side(
    terms: Terms, config: AdapterConfig, written: AdapterWriter, _residual: AdapterWriter | None = None
) -> Iterator[tuple[str, LayerReport]]:
    """Write the stacked factors, whose product is the exact sum; yields each layer's report.

    Args:
        terms: The terms of the sum.
        config: The output config with the scale.
        written: The output; layers with a smaller sum of ranks are padded with zeros.
        _residual: Unused: the sum is exact.
    """

    def one(module: str, buffers: Buffers) -> LayerReport:
        layer = terms.like.parts.layers[module]
        rank = written.tensors[layer.a].shape[0]
        stack = terms.stack(module, buffers)
        norm = max(float(np.vdot(*stack.grams())), 0.0) ** 0.5
        _write(stack, layer, written, _Mix(), config.scale_of(module, rank))
        return LayerReport(rank, norm, 0.0)

    yield from _each_layer(terms, one)


def _each_layer(terms: Terms, one: Callable[[str, Buffers], LayerReport]) -> Iterator[tuple[str, LayerReport]]:
    """Process all layers, two in parallel unless their square matrices are large."""
    modules = list(terms.like.parts.layers)
    threads = THREADS if max(terms.widths().values()) <= _SMALL else 1
    own = threading.local()

    def with_own_buffers(module: str) -> LayerReport:
        if not hasattr(own, "buffers"):
            own.buffers = Buffers()
        return one(module, own.buffers)

    with ThreadPoolExecutor(threads, thread_name_prefix="average") as pool:
        yield from zip(modules, pool.map(with_own_buffers, modules), strict=True)


class _Mix(NamedTuple):
    """How an adapter is computed from the stacked factors: B = L · left and A = right · R; `None`: unchanged."""

    left: Wide | None = None
    right: Wide | None = None
    wide: bool = True
    """Whether A is summed in float64."""


def _write(stack: Stack, layer: Layer, written: AdapterWriter, mix: _Mix, scale: float) -> None:
    """Write B, divided by the scale, and A; larger tensors are padded with zeros."""
    left, right = mix.left, mix.right
    rank = written.tensors[layer.a].shape[0]
    factors = (stack.factors / scale).astype(np.float32)
    narrow = None if left is None else (left * (stack.factors / scale)[:, None]).astype(np.float32)
    for start, rows in stack.left():
        mixed = rows * factors if narrow is None else rows @ narrow
        written.write(layer.b, start * rank, _widened(mixed, (len(rows), rank)))
    for start, columns in stack.right():
        if right is None:
            mixed = columns
        else:
            mixed = _mixed(stack, right, columns) if mix.wide else right.astype(np.float32) @ columns
        written.columns(layer.a, start, _widened(mixed, (rank, columns.shape[1])))


def _mixed(stack: Stack, right: Wide, columns: Array) -> Array:
    """Return right · columns, summed in float64."""
    found = np.empty((len(right), columns.shape[1]), np.float32)
    for at in range(0, columns.shape[1], stack.widened):
        part = slice(at, at + stack.widened)
        found[:, part] = right @ stack.buffers.wide(columns[:, part])
    return found


def _widened(values: Array, shape: tuple[int, int]) -> Array:
    if values.shape == shape:
        return values
    block = np.zeros(shape, np.float32)
    block[: values.shape[0], : values.shape[1]] = values
    return block


def _fill_up(written: AdapterWriter, layer: Layer, first: int, found: Truncated) -> None:
    """Initialize unused rows of A randomly, as LoRA does: with zeros in both A and B they could not be trained."""
    # Seeded by the module name: the output must be reproducible bit by bit.
    random = np.random.default_rng(zlib.crc32(layer.module.encode()))
    for row in range(first, written.tensors[layer.a].shape[0]):
        values = random.standard_normal(layer.columns, np.float32)
        written.write(layer.a, row * layer.columns, values * np.float32(found.spread / layer.columns**0.5))


@dataclass(frozen=True, slots=True)
class Truncated:
    """The best pair as a mixture of the stacked factors.

    Args:
        left: k × r; the new B is L · left.
        right: r × k; the new A is right · R.
        tail_left: k × (k - r), if requested; L · tail_left is the B of the residual.
        tail_right: (k - r) × k, if requested; tail_right · R is the A of the residual.
        norm: Frobenius norm of the sum.
        error: Frobenius norm of the residual, divided by `norm`; 0 if there is none.
        spread: Root mean square length of a row of the new A.
        cancelled: Maximum ratio of the terms' length to the length of their sum, a row of the new A: the factor by
            which cancellation amplifies float32's rounding errors.
    """

    left: Wide
    right: Wide
    tail_left: Wide
    tail_right: Wide
    norm: float
    error: float
    spread: float
    cancelled: float


def truncate(
    gram_left: Wide, gram_right: Wide, rank: int, mean: Wide, weights: Wide, *, tail: bool = False
) -> Truncated:
    """Compute the best pair of factors of a given rank.

    Args:
        gram_left: Lᵀ L, k × k.
        gram_right: R Rᵀ, k × k.
        rank: Rank of the new adapter, at most k.
        mean: Target of the new A, as a mixture of the stacked ones: (its rank) × k.
        weights: k weights of the rows of R, for directions that the sum does not determine.
        tail: Whether to compute the residual.
    """
    # A factor may be long and its partner short, but only their product matters: balance their lengths.
    even = _even(gram_left, gram_right)
    left, right = gram_left / np.outer(even, even), gram_right * np.outer(even, even)
    size = len(even)
    kept = min(rank, size)
    trace = float(np.trace(right))
    # right = C Cᵀ: the columns of Rᵀ C⁻ᵀ are orthonormal, and L C are the coordinates of P in this basis.
    lifted = right + np.eye(size) * (_JITTER * trace / kept if trace > 0 else 1.0)
    basis = np.linalg.cholesky(lifted).astype(np.float64, copy=False)
    near: Wide = mean / even
    core = basis.T @ left @ basis
    # With many updates each of these matrices takes as much memory as all that is still needed.
    del left, right, lifted
    total = max(float(np.trace(core)), 0.0)
    values, vectors = _directions(core, basis, near, weights)
    del core
    # Contributions of the jitter and the tie-breaker do not count as error.
    lost = float(np.maximum(values[kept:], 0.0).sum())
    lost = lost if lost > 2 * size * _JITTER * total else 0.0
    first, rest = vectors[:, :kept], vectors[:, kept : size if tail else kept]
    shape, inverse, spread = _shape(near @ basis @ first, float(weights @ np.diag(gram_right)) / weights.sum())
    back = np.linalg.solve(basis.T, vectors[:, : kept + rest.shape[1]]).T
    mixed = shape @ back[:kept] * even
    return Truncated(
        left=(basis @ first @ inverse) / even[:, None],
        right=mixed,
        tail_left=(basis @ rest) / even[:, None],
        tail_right=back[kept:] * even,
        norm=total**0.5,
        error=(lost / total) ** 0.5 if total > 0 else 0.0,
        spread=spread,
        cancelled=float(np.sqrt((mixed**2 @ np.diag(gram_right)) / (shape**2).sum(axis=1)).max()),
    )


def _even(gram_left: Wide, gram_right: Wide) -> Wide:
    left, right = np.sqrt(np.diag(gram_left)), np.sqrt(np.diag(gram_right))
    fine = (left > 0) & (right > 0)
    even = np.ones(len(left))
    np.sqrt(np.divide(left, right, out=even, where=fine), out=even, where=fine)
    # If one factor is zero, so is the product: the average length makes it neither dominate nor vanish.
    if fine.any() and not fine.all():
        even[~fine] = np.exp(np.log(even[fine]).mean())
    return even


def _directions(core: Wide, basis: Wide, mean: Wide, weights: Wide) -> tuple[Wide, Wide]:
    """Return the eigenvalues and eigenvectors of the core, largest first.

    Directions that the sum does not use are degenerate; a trace of the average A orders them.
    """
    near = mean @ basis
    wished = near.T @ near if near.any() else (basis.T * weights) @ basis
    size, wish = float(np.trace(core)), float(np.trace(wished))
    tie = _TIE * (size if size > 0 else 1.0) / wish if wish > 0 else 0.0
    values, vectors = np.linalg.eigh(core + tie * wished)
    return values[::-1].copy(), vectors[:, ::-1]


def _shape(near: Wide, square: float) -> tuple[Wide, Wide, float]:
    """Return M and its inverse, where the new A is M · Vᵀ and V are the kept directions.

    Args:
        near: The average A in these directions; without rows, M is a multiple of the identity.
        square: Mean square length of the rows of the updates' A; the new rows get the same length.
    """
    kept = near.shape[1]
    spread = square**0.5 or 1.0
    if near.shape[0] != kept or not near.any():
        return np.eye(kept) * spread, np.eye(kept) / spread, spread
    out, lengths, over = np.linalg.svd(near)
    lengths = np.maximum(lengths, _FLATTEST * lengths[0])
    lengths = lengths * (spread / np.sqrt(np.mean(lengths**2)))
    return (out * lengths) @ over, (over.T / lengths) @ out.T, spread
