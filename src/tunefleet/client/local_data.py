"""Validates local data files before a workflow is submitted, with the reader that training uses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tunefleet.analysis.dataset import file_reader
from tunefleet.analysis.dataset.file_reader import Limits, ReadLimitReached, ReadRow
from tunefleet.analysis.dataset.messages import RowError, looks_like_messages, read_question
from tunefleet.analysis.dataset.shapes import (
    SUPERVISED,
    MissingColumnError,
    Recognized,
    columns_hint,
    named,
    named_judged,
    named_pair,
    recognize,
    require_columns,
)
from tunefleet.errors import DataError
from tunefleet.spec.options.data import TrainingData
from tunefleet.spec.options.preference_data import LabelledData, PairData, PpoData, PromptRows
from tunefleet.spec.options.prompts import InferenceData, PromptData
from tunefleet.spec.options.rows import RowsSpec
from tunefleet.spec.tasks.task_types import BaseTaskSpec

# Number of rows that are read of a file.
ROWS: Final = 1000
_LIMITS: Final = Limits(bytes=64 << 20, seconds=5.0)
_PIECE: Final = 1 << 20


def check_file(spec: BaseTaskSpec, pointer: str, file: Path) -> None:
    """Validate the first rows of a data file that a task names.

    Args:
        pointer: Dotted path below `spec` of the key that names the file.
        file: Its path. Folders and archives are left to the worker.

    Raises:
        DataError: If it has no rows, is unreadable, or a row does not fit the task.
    """
    if not file.is_file() or file.suffix.lower() not in file_reader.SUFFIXES:
        return
    prompts = getattr(spec, "data", None)
    data = _block(spec, pointer)
    try:
        if isinstance(prompts, PromptData):
            _check_prompts(file, prompts)
        else:
            _check(file, data)
    except DataError as error:
        path = f"spec.{_key_of(error, data) or pointer}"
        raise DataError(f"{path}: {error.message}", hint=error.hint, path=path) from None


def _key_of(error: DataError, data: RowsSpec | None) -> str | None:
    """Return the key that names a missing column; None for other errors, and for default names."""
    if data is None or not isinstance(error, MissingColumnError):
        return None
    written = data.model_dump(exclude_unset=True)
    return next((f"data.{name}" for name, value in written.items() if value == error.column), None)


def first_rows(file: Path) -> list[Mapping[str, Any]] | None:
    """Return the first rows of a data file; unreadable rows are skipped, unless all are unreadable.

    Args:
        file: Its path.

    Returns:
        `None` if only a worker can read it: a folder, an archive, a large JSON array, or Parquet without pyarrow.

    Raises:
        DataError: If it has no rows, or is unreadable.
    """
    if not file.is_file() or file.suffix.lower() not in file_reader.SUFFIXES:
        return None
    rows: list[Mapping[str, Any]] = []
    bad: DataError | None = None
    try:
        for each in itertools.islice(_found(file), ROWS):
            bad = bad or each.fault
            if each.values is not None:
                rows.append(each.values)
    except ReadLimitReached:
        return rows or None
    if not rows:
        raise bad or _no_rows(file)
    return rows


def _check(file: Path, data: RowsSpec | None) -> None:
    shape: Recognized | None = None
    number = 0
    try:
        for number, row in enumerate(itertools.islice(_rows(file), ROWS), start=1):
            if number == 1 and data is not None:
                shape = _shape(data, row, file.name)
            if shape is None:
                continue
            try:
                shape.read(row, getattr(data, "separator", ""))
            except RowError as error:
                raise DataError(f"Row {number} of {file.name}: {error}.") from None
    except ReadLimitReached:
        return  # the worker reads the complete file
    if number == 0:
        raise _no_rows(file)


def _check_prompts(file: Path, data: PromptData) -> None:
    """Look for the prompt column of a task, and for chats in it that have no question to answer."""
    rows = first_rows(file)
    if rows is None:
        return
    if not any(data.column in row for row in rows):
        known = dict.fromkeys(str(name) for row in rows for name in row)
        raise MissingColumnError(data.column, file.name, columns_hint(data.column, known))
    if not isinstance(data, InferenceData) or "[" in data.split:
        return  # a slice may exclude the row
    for number, row in enumerate(rows, start=1):
        value = row.get(data.column)
        if looks_like_messages(value):
            try:
                read_question(value, data.column)
            except RowError as error:
                raise DataError(f"Row {number} of {file.name}: {error}.") from None


def _no_rows(file: Path) -> DataError:
    return DataError(f"{file.name} has no rows.", hint="Use a file with at least one row.")


def _rows(file: Path) -> Iterator[Mapping[str, Any]]:
    for each in _found(file):
        if each.fault is not None:
            raise each.fault
        yield each.values or {}


def _found(file: Path) -> Iterator[ReadRow]:
    if file.suffix.lower() == file_reader.COLUMNS:
        yield from _parquet(file)
        return
    with file.open("rb") as stream:
        pieces = iter(lambda: stream.read(_PIECE), b"")
        yield from file_reader.found(file.name, pieces, file.stat().st_size, _LIMITS)


def _parquet(file: Path) -> Iterator[ReadRow]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:  # a machine that only submits may not have it; the worker checks the file
        raise ReadLimitReached(
            f"{file.name} is checked by the worker: pyarrow is not installed on this machine."
        ) from None
    try:
        with pq.ParquetFile(file) as table:
            numbers = itertools.count(1)
            for batch in table.iter_batches(batch_size=ROWS):
                yield from map(ReadRow, numbers, batch.to_pylist())
    except pa.ArrowInvalid as error:
        raise DataError(f"{file.name} is not a Parquet file: {error}.") from None


def _shape(data: RowsSpec, first: Mapping[str, Any], origin: str) -> Recognized | None:
    match data:
        case TrainingData():
            wanted = data.shape
            return named(wanted.names, first, origin) if wanted.names else recognize(first, "auto", origin, SUPERVISED)
        case PairData():
            return named_pair(data.columns, first, origin)
        case LabelledData():
            return named_judged(data.columns, first, origin)
        case PromptRows():
            require_columns((name for name in data.columns if name is not None), first, origin)
        case PpoData():
            require_columns((data.prompt_column if data.jsonl is None else data.jsonl.query_field,), first, origin)
    return None


def _block(spec: BaseTaskSpec, pointer: str) -> RowsSpec | None:
    """Return the block of a spec that a pointer leads into and that describes the rows."""
    block: Any = spec
    for part in pointer.split("."):
        if isinstance(block, RowsSpec):
            return block
        block = block[int(part)] if isinstance(block, list | tuple) else getattr(block, part, None)
    return block if isinstance(block, RowsSpec) else None
