"""Put several rows into one sequence, so that no step is spent on padding. Rows never see each other."""

from __future__ import annotations

from dataclasses import dataclass

import datasets
from trl import pack_dataset


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed dataset, with the lengths of the rows of each sequence in `seq_lengths`.

    Args:
        dataset: One sequence each.
        sequences: How many.
        filled: Part of all positions that holds a token.
    """

    dataset: datasets.Dataset
    sequences: int
    filled: float


def pack(dataset: datasets.Dataset, length: int, tokens: int) -> Packed:
    """Pack rows into sequences, best fit first; each row stays whole.

    Args:
        dataset: `input_ids` and `labels`, no row longer than `length`.
        length: Tokens a sequence holds.
        tokens: Tokens of all rows.
    """
    packed = pack_dataset(dataset, length, "bfd")
    return Packed(packed, len(packed), tokens / (len(packed) * length))
