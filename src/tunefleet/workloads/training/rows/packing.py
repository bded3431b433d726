"""Put several rows into one sequence, so that no step is spent on padding. Rows never see each other."""

from __future__ import annotations

from dataclasses import dataclass

import datasets
from trl import pack_dataset

from tunefleet.workloads.data.token_cache import KeptTokens


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


def pack(dataset: datasets.Dataset, length: int, tokens: int, kept: KeptTokens | None = None) -> Packed:
    """Pack rows into sequences, best fit first; each row stays whole.

    Args:
        dataset: `input_ids` and `labels`, no row longer than `length`.
        length: Tokens a sequence holds.
        tokens: Tokens of all rows.
        kept: Has what an earlier launch has packed, or keeps it for a later one.
    """
    if kept is None:
        packed = pack_dataset(dataset, length, "bfd")
    else:
        key, found = kept.derived(dataset, "bfd", length)
        packed = pack_dataset(dataset, length, "bfd") if found is None else found
        if found is None:
            kept.keep_derived(key, packed)
    return Packed(packed, len(packed), tokens / (len(packed) * length))
