"""From the `data` block of a spec to rows: which file, folder, hub dataset or inline text, which split, how many.

Knows the spec and where inputs lie on this machine; leaves formats to `readers` and columns to `shapes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets.exceptions import DatasetNotFoundError

from tunefleet.errors import DataError
from tunefleet.programs import assets, hub
from tunefleet.programs.archives import opened
from tunefleet.programs.data.readers import Rows, file_of_split, read_path
from tunefleet.programs.data.shapes import Shape, choose
from tunefleet.programs.data.streams import HubReader, Reader, TableReader, open_file
from tunefleet.spec import BUILTIN_PREFIX, DataSource, TextShape, TrainingData

_SPLIT = re.compile(r"^(?P<name>[^\[\]]+)(\[(?P<from>-?\d+%?)?:(?P<to>-?\d+%?)?\])?$")


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows that serve one purpose, and how they are read."""

    rows: Rows
    shape: Shape


@dataclass(frozen=True, slots=True)
class Portions:
    """What is trained on, and what is held out."""

    train: Portion
    held_out: Portion | None


def open_portions(data: TrainingData, inputs: Mapping[str, str], workspace: Path, *, seed: int) -> Portions:
    """Find and read the rows of a spec.

    Args:
        data: The spec's `data` block.
        inputs: For each pointer into the spec, the local path that stands for it.
        workspace: Where archives may be unpacked.
        seed: Draws the rows that are held out by `eval.fraction`.

    Raises:
        DataError: If the dataset does not exist, is malformed, empty, or lacks a column.
        UnreachableError: If it is on a hub that does not answer.
    """
    source = _chosen(data, inputs)
    place = _Place(source.kind == "hub", source.value, inputs.get(source.pointer), data, workspace)
    held = data.eval
    # A share of the rows, and a slice from the end, are of all rows: then none may be left unread.
    limit = data.max_samples if held is None or held.fraction is None else None
    rows, origin = _inline(data, limit) if source.kind == "inline" else place.read(data.split, limit)
    shape = _shape(rows, data.shape, origin)
    if held is None:
        return Portions(Portion(rows, shape), None)
    if held.fraction is not None:
        train, kept = _hold_out(rows, held.fraction, seed, origin)
        return Portions(Portion(_first(train, data.max_samples), shape), Portion(_first(kept, held.max_samples), shape))
    return Portions(Portion(rows, shape), _held_out(data, place, inputs, workspace, shape))


def _held_out(
    data: TrainingData, place: _Place, inputs: Mapping[str, str], workspace: Path, shape: Shape
) -> Portion | None:
    """Read the rows of another split or file, as the training rows are read: another column would measure another."""
    held = data.eval
    if held is None:
        return None
    if held.split is not None:
        other, origin = place.read(held.split, held.max_samples)
    else:
        elsewhere = _Place(False, held.path or "", inputs.get("data.eval.path"), data, workspace)
        other, origin = elsewhere.read("train", held.max_samples)
    return Portion(other, _shape(other, shape.wanted, origin))


def _chosen(data: TrainingData, inputs: Mapping[str, str]) -> DataSource:
    """Return the first of several places that is there; the first of all if none is."""
    there = (
        each
        for each in data.sources
        if each.pointer in inputs or (each.kind == "worker_file" and Path(each.value).expanduser().exists())
    )
    return next(there, data.source)


@dataclass(frozen=True, slots=True)
class Stream:
    """Rows that are read as the training goes, and what is held out."""

    reader: Reader
    shape: Shape
    held_out: Portion | None


def open_stream(data: TrainingData, inputs: Mapping[str, str], workspace: Path) -> Stream:
    """Find the rows of a spec with `data.streaming`, and read the first one.

    Args:
        data: The spec's `data` block.
        inputs: For each pointer into the spec, the local path that stands for it.
        workspace: Where archives may be unpacked.

    Raises:
        DataError: If the dataset does not exist, is malformed, empty, lacks a column, or cannot be streamed.
        UnreachableError: If it is on a hub that does not answer.
    """
    source = _chosen(data, inputs)
    place = _Place(source.kind == "hub", source.value, inputs.get(source.pointer), data, workspace)
    reader, origin = place.stream(data.split)
    first = reader.read(None, 1)
    shape = _shape([first.row(0)] if first.size else [], data.shape, origin)
    return Stream(reader, shape, _held_out(data, place, inputs, workspace, shape))


@dataclass(frozen=True, slots=True)
class _Place:
    """A dataset by name, and where it lies on this machine."""

    on_hub: bool
    name: str
    local: str | None
    data: TrainingData
    workspace: Path

    def read(self, split: str, limit: int | None) -> tuple[Rows, str]:
        """Read one split, sliced as the split says; returns the rows and what to call them."""
        match = _SPLIT.match(split)
        if match is None:
            raise DataError(
                f"The split {split!r} cannot be understood.", hint="Write a name, or a slice such as train[:10%]."
            )
        path = self._path()
        if path is None:
            return _first(_from_hub(self.name, split, self.data), limit), f"{self.name} ({split})"
        sliced = match["from"] is not None or match["to"] is not None
        rows = read_path(path, match["name"], None if sliced else limit)
        origin = self.name if path.is_file() else f"{self.name} ({split})"
        if sliced:
            rows = _slice(rows, split, match["name"])
        return _first(rows, limit), origin

    def stream(self, split: str) -> tuple[Reader, str]:
        """Open one split as a stream; returns its reader and what to call it."""
        path = self._path()
        if path is None:
            return _stream_from_hub(self.name, split, self.data), f"{self.name} ({split})"
        if path.is_dir() and ((path / "dataset_dict.json").exists() or (path / "state.json").exists()):
            return TableReader(read_path(path, split)), f"{self.name} ({split})"
        file = file_of_split(path, split) if path.is_dir() else path
        return open_file(file), self.name if path.is_file() else f"{self.name} ({split})"

    def _path(self) -> Path | None:
        """Where it lies; `None` if it is on the hub."""
        if self.name.startswith(BUILTIN_PREFIX):
            return assets.locate(self.name, "dataset")
        named = Path(self.name).expanduser()
        if self.local is None and self.on_hub and not named.exists():
            return None
        path = Path(self.local) if self.local is not None else named
        return opened(path, self.workspace)


def _inline(data: TrainingData, limit: int | None) -> tuple[Rows, str]:
    rows = [{"text": text} for text in data.prompts or ()]
    return _first(rows, limit), "data.prompts"


def _stream_from_hub(name: str, split: str, data: TrainingData) -> Reader:
    try:
        stream = datasets.load_dataset(
            hub.resolve(name, "dataset", data.revision),
            data.config_name,
            split=split,
            revision=data.revision,
            streaming=True,
        )
    except (DatasetNotFoundError, ValueError, OSError) as error:
        raise DataError(f"The dataset {name} cannot be opened: {error}", detail=repr(error)) from error
    return HubReader(stream)


def _from_hub(name: str, split: str, data: TrainingData) -> Rows:
    try:
        loaded = datasets.load_dataset(
            hub.resolve(name, "dataset", data.revision), data.config_name, split=split, revision=data.revision
        )
    except (DatasetNotFoundError, ValueError, OSError) as error:
        raise DataError(f"The dataset {name} cannot be loaded: {error}", detail=repr(error)) from error
    rows: Rows = loaded
    return rows


def _shape(rows: Rows, wanted: TextShape, origin: str) -> Shape:
    if len(rows) == 0:
        raise DataError(f"{origin} has no rows.", hint="Name a dataset, split or slice that has some.")
    return choose(wanted, rows[0].keys(), origin)


def _slice(rows: Rows, split: str, name: str) -> Rows:
    """Cut `name[from:to]` as the `datasets` library does."""
    try:
        (instruction,) = datasets.ReadInstruction.from_spec(split).to_absolute({name: len(rows)})
    except (AssertionError, ValueError) as error:
        raise DataError(f"The split {split!r} does not fit {len(rows)} rows: {error}.") from error
    return _take(rows, range(instruction.from_ or 0, len(rows) if instruction.to is None else instruction.to))


def _hold_out(rows: Rows, fraction: float, seed: int, origin: str) -> tuple[Rows, Rows]:
    """Draw a share of the rows; the same for the same seed and number of rows."""
    count = round(len(rows) * fraction)
    if not 0 < count < len(rows):
        raise DataError(
            f"Holding out {fraction:g} of the {len(rows)} rows of {origin} leaves nothing on one side.",
            hint="Change `data.eval.fraction`, or give more rows.",
        )
    order = np.random.default_rng(seed).permutation(len(rows))
    return _take(rows, sorted(order[count:].tolist())), _take(rows, sorted(order[:count].tolist()))


def _first(rows: Rows, limit: int | None) -> Rows:
    return rows if limit is None or len(rows) <= limit else _take(rows, range(limit))


def _take(rows: Rows, positions: Sequence[int]) -> Rows:
    if isinstance(rows, datasets.Dataset):
        chosen: Rows = rows.select(positions)
        return chosen
    picked: list[Mapping[str, Any]] = [rows[position] for position in positions]
    return picked
