"""Work on tensors block by block, on two threads, in memory that does not depend on how many adapters there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from tunefleet.federation.aggregation.sources import Ingredient
from tunefleet.federation.floats import Array

# Values of a block: 256 KiB of float32, so that what is added up stays in the processor's cache.
BLOCK: Final = 1 << 16
# One reads while the other adds; more are bound by memory.
THREADS: Final = 2


class Span(NamedTuple):
    """A piece of a tensor, counted along the flattened tensor."""

    name: str
    start: int
    stop: int


def spans(sizes: Mapping[str, int], block: int = BLOCK) -> list[Span]:
    """Cut tensors into pieces.

    Args:
        sizes: How many values each tensor has.
        block: Most values of a piece.
    """
    return [
        Span(name, start, min(start + block, size)) for name, size in sizes.items() for start in range(0, size, block)
    ]


def in_threads(work: Callable[[Iterable[Span]], None], pieces: Sequence[Span], threads: int = THREADS) -> None:
    """Do the pieces on some threads, each with its own part of the file.

    Args:
        work: Does some pieces one after the other, with buffers of its own.
        threads: How many.

    Raises:
        Exception: The first that a thread raised.
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
    """Write the weighted sum of a piece of some tensors.

    Args:
        ingredients: The tensors with their factors.
        start: First value of the piece.
        out: The piece; it is overwritten.
        scratch: As many values; they are overwritten.
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
