"""What chance decides: by a seed and a row's number alone, the same on every machine and in every version of Python.

The draw of number `i` is the first 8 bytes of BLAKE2b of `PURPOSE:SEED:i`, as a number of 64 bits.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tunefleet.errors import DataError

Keys = npt.NDArray[np.uint64]


def draw(purpose: str, seed: int, index: int) -> int:
    """Return the draw of a number: 64 bits, evenly spread."""
    digest = hashlib.blake2b(f"{purpose}:{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def source_of(seed: int, index: int, weights: Sequence[float]) -> int:
    """Return which of several sources gives row `index` of their mixture.

    Args:
        index: Number of the row in the mixture, from 0.
    """
    bounds = list(itertools.accumulate(weights))
    at = draw("mix", seed, index) / 2**64 * bounds[-1]
    return next((number for number, bound in enumerate(bounds) if at < bound), len(weights) - 1)


def order(purpose: str, seed: int, count: int) -> Keys:
    """Return the numbers below `count` in the order of their draws."""
    keys = np.fromiter((draw(purpose, seed, index) for index in range(count)), dtype=np.uint64, count=count)
    return np.argsort(keys, kind="stable").astype(np.uint64)


def sampled(seed: int, count: int, wanted: int) -> Keys:
    """Return the numbers of a sample, ascending."""
    return np.sort(order("sample", seed, count)[:wanted])


def parts(seed: int, groups: npt.NDArray[np.int64], count: int, wanted: dict[str, float]) -> dict[str, Keys]:
    """Return which rows each part of a split gets, ascending; what is left is `train`.

    Args:
        wanted: Part → fraction below 1, or number, of the distinct rows.

    Raises:
        DataError: If there are too few rows, or a part gets none.
    """
    drawn, begin = order("split", seed, count), 0
    sides = np.zeros(count, dtype=np.uint8)
    for side, (name, value) in enumerate(wanted.items(), 1):
        size = round(value * count) if value < 1 else int(value)
        if size == 0 or begin + size >= count:
            raise DataError(
                f"A split that gives {size:,} of {count:,} distinct rows to {name} leaves one side empty.",
                hint="Change the step split, or give more rows.",
            )
        sides[drawn[begin : begin + size]] = side
        begin += size
    of_rows = sides[groups]
    return {name: np.flatnonzero(of_rows == side).astype(np.uint64) for side, name in enumerate(("train", *wanted))}
