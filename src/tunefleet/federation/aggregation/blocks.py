"""Processes tensors in blocks on two threads, with memory that does not depend on the number of adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from tunefleet.federation.aggregation.sources import Ingredient
from tunefleet.federation.floats import Array

# Values per block: 256 KiB of float32, so that the running sum stays in the CPU cache.
BLOCK: Final = 1 << 16
# One thread reads while the other adds; more threads are limited by memory bandwidth.
THREADS: Final = 2


class Span(NamedTuple):
    """A range of a flattened tensor."""

    name: str
    start: int
    stop: int


def spans(sizes: Mapping[str, int], block: int = BLOCK) -> list[Span]:
    """Split tensors into pieces.

    Args:
        sizes: Number of values of each tensor.
        block: Maximum number of values of a piece.
    """
    return [
        Span(name, start, min(start + block, size)) for name, size in sizes.items() for start in range(0, size, block)
    ]


def in_threads(work: Callable[[Iterable[Span]], None], pieces: Sequence[Span], threads: int = THREADS) -> None:
    """Process pieces in threads, each with a contiguous part of the file.

    Args:
        work: Processes pieces sequentially, with its own buffers.
        threads: Number of threads.

    Raises:
        Exception: The first exception of a thread.
    """
    share = -(-len(pieces) // threads)
    parts = [pieces[start : start + share] for start in range(0, len(pieces), share or 1)]
    if len(parts) < 2:
        work(pieces)
        return
    with ThreadPoolExecutor(len(parts), thread_name_prefix="average") as pool:
        for done in [pool.submit(work, part) for part in parts]:
            done.result()


def mix(ingredients: Sequence[Ingredient], start: int, out: Array, scratch: Array) -> None:
    """Compute the weighted sum of a piece of several tensors.

    Args:
        ingredients: The tensors with their factors.
        start: Index of the first value.
        out: Output array.
        scratch: Temporary array of the same size.
    """
    first = True
    for ingredient in ingredients:
        into = out if first else scratch
        ingredient.file.read(ingredient.tensor, start, into)
        if ingredient.factor != 1.0:
            np.multiply(into, np.float32(ingredient.factor), out=into)
        if not first:
            np.add(out, scratch, out=out)
        first = False
