"""The exact average of updates: of their products scale · B · A, which the average of the factors is not.

The sum of several products of one rank has up to the sum of their ranks. What becomes of it is chosen: the nearest
adapter of one rank (with the error of each layer), all factors side by side, or the nearest adapter and a second one
that holds the rest, to be merged into the base.

Sources: stacking, Wang et al. 2024 (FLoRA), https://arxiv.org/abs/2409.05976; the rest into the base, Singhal et al.
2024 (FedEx-LoRA), https://arxiv.org/abs/2410.09432; one rank by SVD, Bai et al. 2024 (FlexLoRA),
https://arxiv.org/abs/2402.11505.
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
from tunefleet.federation.aggregation.blocks import THREADS
from tunefleet.federation.aggregation.report import LayerReport
from tunefleet.federation.aggregation.sources import Source
from tunefleet.federation.aggregation.stacks import Stack, stack_of
from tunefleet.federation.aggregation.truncate import Truncated, truncate
from tunefleet.federation.floats import Array, Room, Wide
from tunefleet.federation.layers import Layer
from tunefleet.federation.safetensors_writer import AdapterWriter

# Sum of ranks up to which two layers are worked on at once; beyond it memory counts for more than seconds.
_SMALL: Final = 512
# Where workers' As are nearly alike, their differences have large parts that cancel each other: beyond so much of that
# the new A is added up in float64.
_CANCELLED: Final = 4.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What is added up.

    Args:
        sources: The adapters, the global one among them where changes were shortened.
        shares: What each one's product is multiplied by.
        like: The adapter whose factors' basis and names the outcome has.
    """

    sources: Sequence[Source]
    shares: Sequence[float]
    like: Source

    def stack(self, module: str, room: Room) -> Stack:
        """Return a layer's factors side by side, weighted."""
        return stack_of(self.sources, module, self.shares, room)

    def widths(self) -> dict[str, int]:
        """Return, by module, the sum of the ranks."""
        return {
            module: sum(source.parts.layers[module].rank for source in self.sources)
            for module in self.like.parts.layers
        }

    def mean(self, module: str, rank: int) -> Wide:
        """Return the average A of those with one rank, as mixture of the stacked ones; without rows if none has it."""
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
        """Return each stacked row's weight."""
        ranks = [source.parts.layers[module].rank for source in self.sources]
        return np.repeat(np.maximum(self.shares, 1e-9), ranks)


def to_rank(
    terms: Terms, config: AdapterConfig, written: AdapterWriter, residual: AdapterWriter | None
) -> Iterator[tuple[str, LayerReport]]:
    """Write the nearest adapter, and the rest if there is a file for it; yields each layer's report.

    Args:
        terms: What is added up.
        config: Of the outcome; says the rank of each layer, and the scale.
        residual: What the outcome leaves out, unscaled.
    """

    def one(module: str, room: Room) -> LayerReport:
        layer = terms.like.parts.layers[module]
        rank = written.tensors[layer.a].shape[0]
        stack = terms.stack(module, room)
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
    """Write all factors side by side, whose product is the sum itself; yields each layer's report.

    Args:
        terms: What is added up.
        config: Of the outcome; says the scale.
        written: The outcome; a layer whose ranks sum to less than the outcome's is filled up with zeros.
        _residual: Nothing is left out, so nothing is written there.
    """

    def one(module: str, room: Room) -> LayerReport:
        layer = terms.like.parts.layers[module]
        rank = written.tensors[layer.a].shape[0]
        stack = terms.stack(module, room)
        norm = max(float(np.vdot(*stack.grams())), 0.0) ** 0.5
        _write(stack, layer, written, _Mix(), config.scale_of(module, rank))
        return LayerReport(rank, norm, 0.0)

    yield from _each_layer(terms, one)


def _each_layer(terms: Terms, one: Callable[[str, Room], LayerReport]) -> Iterator[tuple[str, LayerReport]]:
    """Do all layers, two at a time unless their square matrices are large."""
    modules = list(terms.like.parts.layers)
    threads = THREADS if max(terms.widths().values()) <= _SMALL else 1
    own = threading.local()

    def in_own_room(module: str) -> LayerReport:
        if not hasattr(own, "room"):
            own.room = Room()
        return one(module, own.room)

    with ThreadPoolExecutor(threads, thread_name_prefix="average") as pool:
        yield from zip(modules, pool.map(in_own_room, modules), strict=True)


class _Mix(NamedTuple):
    """How an adapter is mixed from the stacked factors: B = L · left and A = right · R; null: as they are."""

    left: Wide | None = None
    right: Wide | None = None
    wide: bool = True
    """Whether A is added up in float64."""


def _write(stack: Stack, layer: Layer, written: AdapterWriter, mix: _Mix, scale: float) -> None:
    """Write B, divided by scale, and A; what the tensors have beyond stays zero."""
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
    """Return right · columns, added up in float64."""
    found = np.empty((len(right), columns.shape[1]), np.float32)
    for at in range(0, columns.shape[1], stack.widened):
        part = slice(at, at + stack.widened)
        found[:, part] = right @ stack.room.wide(columns[:, part])
    return found


def _widened(values: Array, shape: tuple[int, int]) -> Array:
    if values.shape == shape:
        return values
    block = np.zeros(shape, np.float32)
    block[: values.shape[0], : values.shape[1]] = values
    return block


def _fill_up(written: AdapterWriter, layer: Layer, first: int, found: Truncated) -> None:
    """Give rows of A that no update fills random values, as LoRA begins: with zeros in A and B they could not learn."""
    random = np.random.default_rng(zlib.crc32(layer.module.encode()))
    for row in range(first, written.tensors[layer.a].shape[0]):
        values = random.standard_normal(layer.columns, np.float32)
        written.write(layer.a, row * layer.columns, values * np.float32(found.spread / layer.columns**0.5))
