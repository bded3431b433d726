"""The chunk of data of a cycle: a pure function of (seed, position), without stored state."""

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
        """Number of rows."""
        return self.stop - self.start


def chunk_at(position: int, *, rows: int, most: int, seed: int) -> Chunk:
    """Return the chunk of a position.

    An epoch is split into the fewest chunks of at most `most` rows; their sizes differ by at most one. Every row is in
    exactly one chunk of an epoch, and the order of an epoch depends only on the seed and its number.

    Raises:
        ValueError: If there are no rows.
    """
    if rows < 1:
        raise ValueError("there are no rows to train on")
    count = math.ceil(rows / most)
    epoch, index = divmod(position, count)
    start, stop = rows * index // count, rows * (index + 1) // count
    return Chunk(epoch, index, count, start, stop, epoch_seed(seed, epoch))


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the shuffle seed of an epoch; the first epoch uses the campaign's own seed."""
    if epoch == 0:
        return seed
    digest = hashlib.blake2b(f"epoch:{seed}:{epoch}".encode(), digest_size=8).digest()
    # 63 bits, so that the seed fits into a signed 64-bit integer.
    return int.from_bytes(digest, "big") >> 1
