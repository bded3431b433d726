"""Training samples from a stream of rows, in an order that depends on the seed and the position only.

Rows are read in windows of `data.shuffle_buffer`; inside a window they are shuffled with (seed, pass, rows before).
So a position in the stream is one window's mark and two counts. Each batch carries the position after it, so that a
checkpoint holds what was trained, whatever a loader process has prefetched. After the last row comes another pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from trl import pack_dataset

from tunefleet.errors import DataError
from tunefleet.workloads.data.formats import Shape
from tunefleet.workloads.data.streams import Block, Mark, Reader
from tunefleet.workloads.data.token_cache import TokenCache
from tunefleet.workloads.data.tokenization import Encoder, clip

# The key under which a batch carries the position after it.
POSITION_KEY = "stream_place"
# The file of a checkpoint with that position.
POSITION_FILE = "stream_place.json"
# Rows that are tokenized together.
_ROWS_AT_ONCE = 64
# More rows together fill packed sequences better.
_PACKED_AT_ONCE = 1024
Sample = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position in a stream."""

    passes: int = 0
    rows: int = 0
    mark: Mark = None
    group: int = 0
    taken: int = 0
    skip: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of a checkpoint."""
        return asdict(self)


class SampleStream:
    """An endless sequence of samples."""

    def __init__(
        self,
        reader: Reader,
        shape: Shape,
        encoder: Encoder,
        *,
        seed: int,
        window: int,
        max_length: int,
        limit: int | None = None,
        packed: bool = False,
    ) -> None:
        self.reader = reader
        self.shape = shape
        self._encoder = encoder
        self._seed = seed
        self._window = window
        self._max_length = max_length
        self._limit = limit
        self._packed = packed

    def samples(self, start: StreamPosition) -> Iterator[tuple[Sample, StreamPosition]]:
        """Yield samples from a position on, each with the position after it.

        Raises:
            DataError: If a row cannot be used, or a full pass yields no sample.
        """
        # A stream that continues has yielded samples before, so only a first pass can find it empty.
        position, found = replace(start, skip=0), start != StreamPosition()
        while True:
            size = self._window if self._limit is None else min(self._window, self._limit - position.rows)
            block = self.reader.read(position.mark, size)
            for sample, after in self._window_samples(block, position):
                found = True
                yield sample, after
            rows = position.rows + block.size
            if block.after is None or rows == self._limit:
                if not found:
                    raise self._nothing(rows)
                position = StreamPosition(position.passes + 1)
            else:
                position = StreamPosition(position.passes, rows, block.after)

    def _window_samples(self, block: Block, position: StreamPosition) -> Iterator[tuple[Sample, StreamPosition]]:
        order = np.random.default_rng([self._seed, position.passes, position.rows]).permutation(block.size).tolist()
        size = _PACKED_AT_ONCE if self._packed else _ROWS_AT_ONCE
        for group in range(position.group, -(-block.size // size)):
            samples = self._group(block, order[group * size : (group + 1) * size], position.rows)
            first = position.taken if group == position.group else 0
            for number, sample in enumerate(samples[first:], first + 1):
                yield sample, replace(position, group=group, taken=number)

    def _group(self, block: Block, positions: Sequence[int], before: int) -> list[Sample]:
        examples = [self.shape.read(before + index + 1, block.row(index)) for index in positions]
        cut = [clip(tokens, self._max_length) for tokens in self._encoder.encode(examples, self.shape.notes)]
        samples: list[Sample] = [
            {"input_ids": one.ids.tolist(), "labels": one.labels.tolist()} for one in cut if one is not None
        ]
        if not self._packed or not samples:
            return samples
        tokens = sum(len(sample["input_ids"]) for sample in samples)
        return pack(datasets.Dataset.from_list(samples), self._max_length, tokens).dataset.to_list()

    def _nothing(self, rows: int) -> DataError:
        if rows == 0:
            return DataError(f"{self.shape.origin} has no rows.", hint="Choose a dataset with rows.")
        return DataError(
            f"No row of {self.shape.origin} has trained tokens within {self._max_length} tokens.",
            hint="Raise `training.max_seq_length`, or inspect the rows with `tunefleet preview`.",
        )


class StreamShare(IterableDataset[Sample]):
    """The samples of one rank: every `world`-th batch."""

    def __init__(
        self, stream: SampleStream, start: StreamPosition, *, batch: int, rank: int = 0, world: int = 1
    ) -> None:
        self._stream = stream
        self._start = start
        self._batch = batch
        self._rank = rank
        self._world = world

    def __iter__(self) -> Iterator[Sample]:
        """Yield this rank's samples, each with the position after it."""
        others = (self._world - 1) * self._batch
        for number, (sample, position) in enumerate(self._stream.samples(self._start), -self._start.skip):
            if number >= 0 and number // self._batch % self._world == self._rank:
                # Rank 0 writes the checkpoint: on resume, the batches of the other ranks come after its own.
                yield {**sample, POSITION_KEY: replace(position, skip=others)}


class Collator:
    """Collates batches that carry their stream position."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, samples: list[Sample]) -> dict[str, Any]:
        """Collate a batch."""
        position = samples[-1][POSITION_KEY]
        batch: dict[str, Any] = dict(
            self._collate([{k: v for k, v in s.items() if k != POSITION_KEY} for s in samples])
        )
        batch[POSITION_KEY] = position
        return batch


def loader(share: StreamShare, collate: Any, *, batch: int, workers: int, pin: bool) -> DataLoader[Sample]:
    """Return the data loader of a rank."""
    return DataLoader(
        share,
        batch_size=batch,
        collate_fn=Collator(collate),
        num_workers=workers,
        pin_memory=pin,
        # Not the global generator: a loader draws from it when it starts, which would change a resumed run.
        generator=torch.Generator(),
    )


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed dataset, with the lengths of the rows of each sequence in `seq_lengths`."""

    dataset: datasets.Dataset
    sequences: int
    filled: float


def pack(dataset: datasets.Dataset, length: int, tokens: int, kept: TokenCache | None = None) -> Packed:
    """Pack rows into sequences with best-fit decreasing; rows are not split."""
    if kept is None:
        packed = pack_dataset(dataset, length, "bfd")
    else:
        key, found = kept.derived(dataset, "bfd", length)
        packed = pack_dataset(dataset, length, "bfd") if found is None else found
        if found is None:
            kept.keep_derived(key, packed)
    return Packed(packed, len(packed), tokens / (len(packed) * length))
