"""From the `data` block of a spec to rows: which file, folder, Hub dataset or inline text, which split, how many.

Resolves the spec and the inputs on this machine; `readers` handles formats, and `shapes` columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefleet.analysis.dataset.shapes import SIDE_COLUMNS, require_columns
from tunefleet.errors import DataError
from tunefleet.spec import DataSource, EvalSpec, RowsSpec, TextShape, TrainingData
from tunefleet.workloads.data.dataset_source import HubSet, Place, first
from tunefleet.workloads.data.formats import Shape, choose
from tunefleet.workloads.data.holdout import Duplicates, hold_out, overlap
from tunefleet.workloads.data.readers import Rows
from tunefleet.workloads.data.streams import Reader


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows for one purpose, and how they are read."""

    rows: Rows
    shape: Shape


@dataclass(frozen=True, slots=True)
class Portions:
    """The training set, the eval set, and the duplicate rows."""

    train: Portion
    held_out: Portion | None
    duplicates: Duplicates | None = None


def open_portions(data: TrainingData, inputs: Mapping[str, str], workspace: Path, *, seed: int) -> Portions:
    """Find and read the rows of a spec."""

    def trained(first: Mapping[str, Any], origin: str) -> tuple[str, ...]:
        return choose(data.shape, first, origin).columns

    found = open_rows(data, inputs, workspace, trained, seed=seed)
    shape = _shape(found.train, data.shape, found.origin)
    held_out = found.held_out
    kept = None if held_out is None else Portion(held_out, _same_shape(held_out, shape, found.held_out_origin))
    return Portions(Portion(found.train, shape), kept, found.duplicates)


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """Rows before their content is recognized."""

    train: Rows
    origin: str
    held_out: Rows | None
    held_out_origin: str
    duplicates: Duplicates | None = None


def open_rows(
    data: RowsSpec,
    inputs: Mapping[str, str],
    workspace: Path,
    trained: Callable[[Mapping[str, Any], str], Collection[str]],
    *,
    seed: int,
) -> LoadedRows:
    """Find and read the rows of a spec; raises the errors of `open_portions`."""
    source = _chosen(data, inputs)
    place = Place(source.value, inputs.get(source.pointer), workspace, _hub(data) if source.kind == "hub" else None)
    held = data.eval
    # A fraction, and a slice from the end, refer to all rows, so all must be read.
    limit = data.max_samples if held is None or held.fraction is None else None
    rows, origin = _inline(data, limit) if source.kind == "inline" else place.read(data.split, limit)
    _some(rows, origin)
    if held is None:
        return LoadedRows(rows, origin, None, origin)
    if held.fraction is not None:
        # Rows count as equal by the columns that are trained on, not by ids or notes.
        columns = {*trained(rows[0], origin), *SIDE_COLUMNS}
        train, kept, duplicates = hold_out(rows, held.fraction, seed, origin, columns)
        return LoadedRows(first(train, data.max_samples), origin, first(kept, held.max_samples), origin, duplicates)
    other, elsewhere = _read_held_out(held, place, inputs, workspace)
    _some(other, elsewhere)
    columns = {*trained(rows[0], origin), *SIDE_COLUMNS}
    return LoadedRows(rows, origin, other, elsewhere, overlap(rows, other, columns))


def _held_out(
    data: TrainingData, place: Place, inputs: Mapping[str, str], workspace: Path, shape: Shape
) -> Portion | None:
    """Read the eval rows of another split or file, with the columns of the training rows."""
    if data.eval is None:
        return None
    other, origin = _read_held_out(data.eval, place, inputs, workspace)
    return Portion(other, _same_shape(other, shape, origin))


def _read_held_out(held: EvalSpec, place: Place, inputs: Mapping[str, str], workspace: Path) -> tuple[Rows, str]:
    if held.split is not None:
        return place.read(held.split, held.max_samples)
    elsewhere = Place(held.path or "", inputs.get("data.eval.path"), workspace)
    return elsewhere.read("train", held.max_samples)


def _chosen(data: RowsSpec, inputs: Mapping[str, str]) -> DataSource:
    """Return the first available source; the first of all if none is available."""
    return next((each for each in data.sources if each.pointer in inputs), data.source)


@dataclass(frozen=True, slots=True)
class Stream:
    """Rows that are read during training, and the eval set."""

    reader: Reader
    shape: Shape
    held_out: Portion | None


def open_stream(data: TrainingData, inputs: Mapping[str, str], workspace: Path) -> Stream:
    """Find the rows of a spec with `data.streaming`, and read the first one.

    Raises:
        DataError: If the dataset does not exist, is malformed, empty, lacks a column, or cannot be streamed.
        UnreachableError: If it is on the Hub that does not respond.
    """
    source = _chosen(data, inputs)
    place = Place(source.value, inputs.get(source.pointer), workspace, _hub(data) if source.kind == "hub" else None)
    reader, origin = place.stream(data.split)
    # The first row decides the shape, before training starts.
    begin = reader.read(None, 1)
    shape = _shape([begin.row(0)] if begin.size else [], data.shape, origin)
    return Stream(reader, shape, _held_out(data, place, inputs, workspace, shape))


def _inline(data: RowsSpec, limit: int | None) -> tuple[Rows, str]:
    given = getattr(data, data.inline) or ()
    rows = [{"text": row} if isinstance(row, str) else row.model_dump() for row in given]
    return first(rows, limit), f"data.{data.inline}"


def _hub(data: RowsSpec) -> HubSet:
    return HubSet(data.config_name, data.revision)


def _some(rows: Rows, origin: str) -> None:
    if len(rows) == 0:
        raise DataError(f"{origin} has no rows.", hint="Choose a dataset, split or slice that has rows.")


def _shape(rows: Rows, wanted: TextShape, origin: str) -> Shape:
    _some(rows, origin)
    return choose(wanted, rows[0], origin)


def _same_shape(rows: Rows, shape: Shape, origin: str) -> Shape:
    """Read eval rows like the training rows: another column would measure something else."""
    _some(rows, origin)
    if not shape.recognized.by_row:
        require_columns(shape.columns, rows[0], origin)
    return Shape(shape.recognized, origin, shape.separator, as_chat=shape.as_chat)
