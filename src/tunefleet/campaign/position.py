"""Where in the data a cycle stands: a pure function of (seed, position), with nothing to remember."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows of one cycle."""

    epoch: int
    index: int
    count: int
    start: int
    stop: int
    seed: int

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.stop - self.start


def chunk_at(position: int, *, rows: int, most: int, seed: int) -> Chunk:
    """Return the chunk of a position.

    An epoch is cut into the fewest chunks that have at most `most` rows; their sizes differ by one at most. Every row
    is in exactly one chunk of an epoch, and the order of an epoch depends on the seed and its number alone.

    Raises:
        ValueError: If there is no row.
    """
    if rows < 1:
        raise ValueError("there is no row to train on")
    count = math.ceil(rows / most)
    epoch, index = divmod(position, count)
    start, stop = rows * index // count, rows * (index + 1) // count
    return Chunk(epoch, index, count, start, stop, epoch_seed(seed, epoch))


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of the order of an epoch; the first one has the campaign's own."""
    if epoch == 0:
        return seed
    digest = hashlib.blake2b(f"epoch:{seed}:{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
