"""Reads a dataset block by block, without loading it, and resumes at any position that was reached before.

A position is a *mark*: a small JSON value of the reader, such as a byte offset. Seeking to a mark costs at most one
block, whatever is before it; a reader that has to read everything before it sets `seeks` to False.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from tunefleet.analysis.dataset.file_reader import json_line
from tunefleet.errors import DataError
from tunefleet.workloads.data.readers import Rows, csv_file

# Position where a block begins; JSON. `None` is the beginning.
Mark = Any
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows.

    Args:
        after: Mark of the next block; None at the end of the data.
    """

    size: int
    row: Callable[[int], Row]
    after: Mark


class Reader(Protocol):
    """Reads the blocks of a dataset in order."""

    seeks: bool
    """Whether seeking costs the same for every mark."""

    @property
    def rows_read(self) -> int:
        """Number of rows read so far, including skipped ones."""

    def read(self, mark: Mark, count: int) -> Block:
        """Read up to `count` rows from a mark.

        Raises:
            DataError: If the data is malformed.
        """


class JsonlReader:
    """A JSONL file; a mark is `[byte offset, lines before it]`."""

    seeks = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows_read = 0

    def read(self, mark: Mark, count: int) -> Block:
        """Read lines; they are parsed on access."""
        offset, number = mark or (0, 0)
        lines: list[tuple[int, bytes]] = []
        with self._path.open("rb") as file:
            file.seek(offset)
            while len(lines) < count and (line := file.readline()):
                number += 1
                if not line.isspace():
                    # Kept as bytes: parsing is deferred until a row is used.
                    lines.append((number, line))
            end = file.tell()
            # One byte ahead shows whether this is the last block.
            more = bool(file.read(1))
        self.rows_read += len(lines)
        return Block(
            len(lines), lambda index: json_line(self._path.name, *lines[index]), [end, number] if more else None
        )


class ParquetReader:
    """A Parquet file; a mark is a row number. One row group is in memory at a time."""

    seeks = True

    def __init__(self, path: Path) -> None:
        self.rows_read = 0
        self._path = path
        self._file: pq.ParquetFile | None = None
        self._group: tuple[int, pa.Table] | None = None
        try:
            metadata = pq.read_metadata(path)
        except pa.ArrowInvalid as error:
            raise DataError(f"{path.name} is not a Parquet file: {error}.") from None
        sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self._starts = [0, *itertools.accumulate(sizes)]

    def read(self, mark: Mark, count: int) -> Block:
        """Read rows from as many row groups as needed."""
        first, parts, total = int(mark or 0), [], self._starts[-1]
        last = min(first + count, total)
        for number, (start, end) in enumerate(itertools.pairwise(self._starts)):
            if start < last and end > first:
                begin = max(first - start, 0)
                parts.append(self._table(number).slice(begin, min(last, end) - start - begin))
        if not parts:
            return Block(0, list[Row]().__getitem__, None)
        rows = pa.concat_tables(parts)
        return Block(len(rows), lambda index: _row_of(rows, index), last if last < total else None)

    def _table(self, number: int) -> pa.Table:
        if self._group is None or self._group[0] != number:
            # Opened on first use: a forked process must not share the descriptor's offset.
            self._file = self._file or pq.ParquetFile(self._path)
            self._group = (number, self._file.read_row_group(number))
            self.rows_read += len(self._group[1])
        return self._group[1]


class TableReader:
    """Rows of a memory-mapped file; a mark is a row number."""

    seeks = True

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.rows_read = 0

    def read(self, mark: Mark, count: int) -> Block:
        """Return a range; rows are read on access."""
        first = int(mark or 0)
        last = min(first + count, len(self._rows))
        self.rows_read += last - first
        return Block(last - first, lambda index: self._rows[first + index], last if last < len(self._rows) else None)


class CsvReader:
    """A CSV or TSV file; a mark is the number of rows before it, which are all read to seek."""

    seeks = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows_read = 0
        self._rows: Iterator[Row] | None = None
        self._at = 0

    def read(self, mark: Mark, count: int) -> Block:
        """Read rows; seeking back, or far ahead, starts at the beginning of the file."""
        first = int(mark or 0)
        if self._rows is None or self._at != first:
            self._rows, self._at = csv_file(self._path), 0
            self._take(first)
        rows = self._take(count)
        return Block(len(rows), rows.__getitem__, self._at if len(rows) == count else None)

    def _take(self, count: int) -> Sequence[Row]:
        rows = list(itertools.islice(self._rows or (), count))
        self._at += len(rows)
        self.rows_read += len(rows)
        return rows


class HubReader:
    """A streamed dataset of the `datasets` library; a mark is the library's state: shard, and position in it."""

    seeks = True

    def __init__(self, stream: datasets.IterableDataset) -> None:
        self._stream = stream
        self.rows_read = 0
        self._rows: Iterator[Row] | None = None
        self._at: Mark = None
        self._start: Mark = None

    def read(self, mark: Mark, count: int) -> Block:
        """Read rows, and record the library's state after them."""
        if self._rows is None or mark != self._at:
            if mark is not None:
                self._stream.load_state_dict(mark)
            elif self._rows is not None:
                self._stream.load_state_dict(self._start)
            else:
                # Kept to go back to the beginning later.
                self._start = self._stream.state_dict()
            self._rows = iter(self._stream)
        rows = list(itertools.islice(self._rows, count))
        self.rows_read += len(rows)
        self._at = self._stream.state_dict()
        return Block(len(rows), rows.__getitem__, self._at if len(rows) == count else None)


class ChainedReader:
    """Several files in sequence; a mark is the number of a file and the mark in it."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers
        self.seeks = all(reader.seeks for reader in readers)

    @property
    def rows_read(self) -> int:
        """Number of rows read so far from all files."""
        return sum(reader.rows_read for reader in self._readers)

    def read(self, mark: Mark, count: int) -> Block:
        """Read rows, across the end of a file if necessary."""
        at, inner = mark or (0, None)
        blocks: list[Block] = []
        missing = count
        after: Mark = None
        while missing and at < len(self._readers):
            block = self._readers[at].read(inner, missing)
            blocks.append(block)
            missing -= block.size
            at, inner = (at + 1, None) if block.after is None else (at, block.after)
            after = [at, inner] if at < len(self._readers) else None
        starts = list(itertools.accumulate((block.size for block in blocks), initial=0))

        def row(index: int) -> Row:
            which = bisect.bisect_right(starts, index) - 1
            return blocks[which].row(index - starts[which])

        return Block(starts[-1], row, after)


def chained(readers: Sequence[Reader]) -> Reader:
    """Return a reader of several files in sequence."""
    return readers[0] if len(readers) == 1 else ChainedReader(readers)


def open_file(path: Path) -> Reader:
    """Return the reader of a file, by its suffix."""
    if not path.exists():
        raise DataError(f"Dataset {path} does not exist.", hint="Correct the path in the spec's `data` block.")
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return JsonlReader(path)
        case ".parquet":
            return ParquetReader(path)
        case ".csv" | ".tsv":
            return CsvReader(path)
    raise DataError(
        f"Dataset {path.name} cannot be read as a stream.",
        hint="Convert it to JSONL or Parquet, or remove `data.streaming`.",
    )


def _row_of(table: pa.Table, index: int) -> Row:
    row: Row = table.slice(index, 1).to_pylist()[0]
    return row
