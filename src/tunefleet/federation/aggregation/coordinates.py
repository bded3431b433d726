"""Robust rules that look at each number by itself: the median, and the mean without the outermost.

They work on the factors, which mean something only in one basis: as (B R)(R⁻¹ A) is the same update as B · A for every
R, an update in another basis looks like an outlier, or pulls the median anywhere. So ranks must be equal, and the
workers must begin each round from the published adapter. Examples do not weigh: a liar would claim many.
`krum` and `multi_krum` compare products and have no such limit.

Source: Yin et al. 2018, https://arxiv.org/abs/1803.01498.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from tunefleet.federation.aggregation.blocks import BLOCK, THREADS, Span, in_threads, spans
from tunefleet.federation.aggregation.linear import Recipe
from tunefleet.federation.aggregation.sources import Ingredient
from tunefleet.federation.floats import Array
from tunefleet.federation.safetensors_writer import AdapterWriter

# Of all updates' pieces together, on all threads.
_MAX_BYTES: Final = 16 << 20


def trimmed(count: int, trim: float) -> int:
    """Return how many of `count` numbers are left out at each end.

    Args:
        count: How many there are; 3 or more.
        trim: Which part of them; at least one number is left out.
    """
    # 0.29 of 100 is a little less than 29 in floats.
    return min(max(1, int(trim * count + 1e-9)), (count - 1) // 2)


def middle(count: int) -> int:
    """Return how many of `count` ordered numbers stand before the median, or before the two around it."""
    return (count - 1) // 2


def combine_ordered(
    rows: Recipe, cut: int, written: AdapterWriter, old: Mapping[str, Ingredient], kept: Sequence[float]
) -> None:
    """Order each number over the updates, leave some out at both ends, and write the mean of the rest.

    Args:
        rows: By tensor, the updates.
        cut: How many are left out at each end.
        old: By tensor, the global adapter; what is not kept of an update's change is made up from it. Empty if nothing
            is to be made up.
        kept: How much of each update's change is kept.
    """
    count = max(len(each) for each in rows.values())
    block = max(1024, min(BLOCK, _MAX_BYTES // (4 * THREADS * count)))

    def work(pieces: Iterable[Span]) -> None:
        buffers = [np.empty(block, np.float32) for _ in range(count + 1)]
        for name, start, stop in pieces:
            lines = [buffer[: stop - start] for buffer in buffers]
            for ingredient, line in zip(rows[name], lines, strict=False):
                _read(ingredient, start, line)
            if name in old:
                _make_up(old[name], kept, start, lines)
            order(lines[:count])
            written.write(name, start, _mean(lines[cut : count - cut]))

    in_threads(work, spans({name: written.tensors[name].size for name in rows}, block))


def _read(ingredient: Ingredient, start: int, out: Array) -> None:
    ingredient.file.read(ingredient.tensor, start, out)
    if ingredient.factor != 1.0:
        out *= np.float32(ingredient.factor)


def _make_up(old: Ingredient, kept: Sequence[float], start: int, lines: Sequence[Array]) -> None:
    before = lines[-1]
    _read(old, start, before)
    for part, line in zip(kept, lines, strict=False):
        if part < 1.0:
            np.add(line, before * np.float32(1.0 - part), out=line)


def _mean(lines: Sequence[Array]) -> Array:
    total = lines[0].copy()
    for line in lines[1:]:
        total += line
    total /= np.float32(len(lines))
    return total


def order(lines: Sequence[Array]) -> None:
    """Order numbers over several arrays in place: afterwards the first has the smallest of each place.

    Args:
        lines: Arrays of one length.
    """
    smaller = np.empty_like(lines[0])
    for low, high in network(len(lines)):
        np.minimum(lines[low], lines[high], out=smaller)
        np.maximum(lines[low], lines[high], out=lines[high])
        np.copyto(lines[low], smaller)


def network(count: int) -> Iterator[tuple[int, int]]:
    """Yield the comparisons that order any `count` numbers, whatever they are.

    Source: Batcher's merge exchange, Knuth, The Art of Computer Programming 3, 5.2.2 M.
    """
    if count < 2:
        return
    top = 1 << ((count - 1).bit_length() - 1)
    step = top
    while step:
        reach, offset, apart = top, 0, step
        while True:
            for low in range(count - apart):
                if low & step == offset:
                    yield low, low + apart
            if reach == step:
                break
            apart, reach, offset = reach - step, reach >> 1, step
        step >>= 1
