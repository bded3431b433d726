"""Data of a supervised run: tokenized rows or a stream, the eval split, and the position of a stream on resume."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np

from tunefleet.errors import DataError
from tunefleet.spec import TrainingTaskSpec
from tunefleet.trainer_control.journal.null import Journal
from tunefleet.workloads.data import sources
from tunefleet.workloads.data.holdout import Duplicates
from tunefleet.workloads.data.streams import Reader
from tunefleet.workloads.data.token_cache import TokenCache
from tunefleet.workloads.data.tokenization import IGNORED, Encoder, Tokenized
from tunefleet.workloads.training import streaming
from tunefleet.workloads.training.streaming import POSITION_FILE, Packed, SampleStream, StreamPosition

# Rows read to measure the speed of a source that cannot seek.
_PROBED_ROWS = 1000


@dataclass(frozen=True, slots=True)
class RunRows:
    """The rows of a spec."""

    rows: sources.Portion | None
    stream: sources.Stream | None
    held_out: sources.Portion | None
    duplicates: Duplicates | None = None


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The tokenized train and eval rows of a run.

    Args:
        train: Tokenized rows; `None` if they are streamed.
    """

    train: Tokenized | None
    shape: str
    origin: str
    held_out: Tokenized | None
    packed: Packed | None
    max_length: int
    stream: SampleStream | None = None
    duplicates: Duplicates | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about content of the rows that is not used; of a stream, about the rows read so far."""
        found = self.stream.shape.notes.sentences if self.stream is not None else ()
        parts = [part.notes for part in (self.train, self.held_out) if part is not None]
        return tuple(dict.fromkeys((*found, *(note for part in parts for note in part))))

    @property
    def labelled(self) -> float | None:
        """Labels of the row with the most, as a share of the max sequence length; `None` if unknown."""
        if self.train is None or self.packed is not None:
            return None
        labels = self.train.dataset.data.column("labels").combine_chunks()
        starts = labels.offsets.to_numpy()[:-1]
        counts = np.add.reduceat((labels.values.to_numpy() != IGNORED).astype(np.int64), starts)
        return float(counts.max()) / self.max_length

    @property
    def dataset(self) -> datasets.Dataset:
        """The Trainer's dataset; for a stream a single sample, which shows it the columns."""
        if self.stream is not None:
            sample, _ = next(self.stream.samples(StreamPosition()))
            return datasets.Dataset.from_list([sample])
        assert self.train is not None
        return self.packed.dataset if self.packed else self.train.dataset


def open_data(spec: TrainingTaskSpec, inputs: Mapping[str, str], workspace: Path) -> RunRows:
    """Open the dataset or stream of a spec.

    Raises:
        InputError: If the data cannot be used.
    """
    if spec.data.streaming:
        stream = sources.open_stream(spec.data, inputs, workspace)
        return RunRows(None, stream, stream.held_out)
    portions = sources.open_portions(spec.data, inputs, workspace, seed=spec.training.seed)
    return RunRows(portions.train, None, portions.held_out, portions.duplicates)


def prepare(
    spec: TrainingTaskSpec, found: RunRows, encoder: Encoder, context: int | None, journal: Journal, kept: TokenCache
) -> TrainingData:
    """Tokenize the rows, or open the stream of samples.

    Raises:
        DataError: If no row is left, or a row cannot be used.
    """
    training = spec.training
    max_length = min(training.max_seq_length, context or training.max_seq_length)
    if max_length < training.max_seq_length:
        journal.event("data.context", f"Rows are truncated to {max_length} tokens, the context length of the model.")
    train = None
    if found.rows is not None:
        rows = found.rows
        train = kept.tokenize(rows.rows, rows.shape, encoder, max_length, training.dataset_num_proc)
    held_out = None
    if found.held_out is not None:
        rows = found.held_out
        held_out = kept.tokenize(rows.rows, rows.shape, encoder, max_length, training.dataset_num_proc)
    if train is None or found.rows is None:
        return _streamed(spec, found, encoder, max_length, held_out)
    for count, what in ((train.truncated, "truncated"), (train.dropped, "skipped: no trained tokens")):
        if count:
            text = f"{count} of {train.rows + train.dropped} rows are {what} (max sequence length: {max_length})."
            journal.event("data.truncated", text, "warning")
    packed = streaming.pack(train.dataset, max_length, train.tokens, kept) if training.packing else None
    kept.forget_others()
    journal.event(
        "data.ready",
        f"{train.rows} rows, {train.tokens} tokens, {train.trained_tokens} trained tokens.",
        data={"rows": train.rows, "tokens": train.tokens, "trained_tokens": train.trained_tokens},
    )
    shape = found.rows.shape
    training_data = TrainingData(
        train, shape.kind, shape.origin, held_out, packed, max_length, duplicates=found.duplicates
    )
    report_notes(journal, training_data.notes, training_data.duplicates)
    return training_data


def report_notes(journal: Journal, notes: Iterable[str], duplicates: Duplicates | None) -> None:
    """Report unused content of the rows, and duplicate rows."""
    for note in notes:
        journal.event("data.note", note, "warning")
    if duplicates is not None and duplicates.sentence is not None:
        data = {"duplicates": duplicates.rows, "shared": duplicates.shared}
        journal.event("data.duplicates", duplicates.sentence, "warning", data)


def stream_position(
    checkpoint: Path | None, stream: SampleStream, rows_needed: int, journal: Journal
) -> StreamPosition:
    """Return the position at which a stream continues; reports the cost of reaching it if its reader cannot seek.

    Raises:
        DataError: If the checkpoint has no stream position.
    """
    position = StreamPosition()
    if checkpoint is not None:
        try:
            position = StreamPosition(**json.loads((checkpoint / POSITION_FILE).read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(
                f"{checkpoint.name} has no stream position ({error}).",
                hint="It was saved without `data.streaming`: resume without it, or start a new run.",
            ) from error
    if not stream.reader.seeks:
        _report_seek_cost(stream.reader, position.rows, rows_needed, journal)
    return position


def _report_seek_cost(reader: Reader, before: int, rows_needed: int, journal: Journal) -> None:
    started = time.monotonic()
    probed = max(reader.read(None, _PROBED_ROWS).size, 1)
    row_s = (time.monotonic() - started) / probed
    rows = before or rows_needed
    what = "Resuming reads" if before else "This source cannot seek: resuming near the end would read"
    journal.event(
        "data.seek",
        f"{what} about {rows:,} rows again, which takes about {rows * row_s:.1f} s. JSONL and Parquet can seek.",
        "warning",
        data={"rows": rows, "seconds": round(rows * row_s, 3)},
    )


def _streamed(
    spec: TrainingTaskSpec, found: RunRows, encoder: Encoder, max_length: int, held_out: Tokenized | None
) -> TrainingData:
    assert found.stream is not None
    shape = found.stream.shape
    stream = SampleStream(
        found.stream.reader,
        shape,
        encoder,
        seed=spec.training.seed,
        window=spec.data.shuffle_buffer,
        max_length=max_length,
        limit=spec.data.max_samples,
        packed=spec.training.packing,
    )
    return TrainingData(None, shape.kind, shape.origin, held_out, None, max_length, stream)
