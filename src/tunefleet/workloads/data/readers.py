"""Reads a dataset from a local file or folder.

Handles formats (JSONL, JSON, CSV, TSV, Parquet, a saved dataset) and row positions; independent of column names and
models. Nothing is cached outside the memory of the process.
"""

from __future__ import annotations

import codecs
import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import datasets
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tunefleet.analysis.dataset.file_reader import csv_rows, json_line, refuse_encoding, refuse_rounding
from tunefleet.errors import DataError

Rows = Sequence[Mapping[str, Any]]
_MEDIA = tuple(
    getattr(datasets, name) for name in ("Image", "Audio", "Video", "Pdf", "Nifti") if hasattr(datasets, name)
)
_Stored = TypeVar("_Stored", datasets.Dataset, datasets.IterableDataset)
_SHARD = re.compile(r"(?P<name>.+)-(?P<at>\d{5})-of-(?P<count>\d{5})(-[0-9a-f]+)?")


class Selection(Sequence[Mapping[str, Any]]):
    """Some rows of a dataset, with their original numbers.

    Args:
        numbers: Number of each row in the whole dataset, from 1.
    """

    def __init__(self, rows: Rows, numbers: NDArray[np.int64]) -> None:
        self.rows = rows
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield the rows."""
        return iter(self.rows)

    @overload
    def __getitem__(self, at: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, at: slice) -> Selection: ...

    def __getitem__(self, at: int | slice) -> Mapping[str, Any] | Selection:
        """Return a row, or a range of them."""
        if isinstance(at, int):
            return self.rows[at]
        return Selection(_at(self.rows, range(len(self.rows))[at]), self.numbers[at])


def take(rows: Rows, positions: Sequence[int]) -> Selection:
    """Return the rows at some positions, in that order."""
    places = np.asarray(positions, dtype=np.int64)
    if isinstance(rows, Selection):
        return Selection(_at(rows.rows, positions), rows.numbers[places])
    return Selection(_at(rows, positions), places + 1)


def numbered(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield rows with their numbers in the dataset."""
    if isinstance(rows, Selection):
        return zip(rows.numbers.tolist(), rows, strict=True)
    return enumerate(rows, start=1)


def table(rows: Rows) -> datasets.Dataset | None:
    """Return the table of the rows, if they are stored in one."""
    found = rows.rows if isinstance(rows, Selection) else rows
    return found if isinstance(found, datasets.Dataset) else None


def _at(rows: Rows, positions: Sequence[int]) -> Rows:
    if isinstance(rows, datasets.Dataset):
        chosen: Rows = rows.select(positions)
        return chosen
    return [rows[position] for position in positions]


def read_path(path: Path, split: str, limit: int | None = None) -> Rows:
    """Read one split from a file or a folder.

    Args:
        path: A data file; a folder saved by `datasets`; or a folder as on the Hub: one file per split, or
            `train-00000-of-00002.parquet` and so on, in the folder itself or in `data/`.
        split: The bare name of the split, such as `train`. A file is a single split whatever its name.
    """
    if path.is_dir():
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
            return _saved_dataset(path, split)
        return _joined([read_file(file, limit) for file in files_of_split(path, split)])
    if not path.exists():
        raise DataError(f"Dataset {path} does not exist.", hint="Correct the path in the spec's `data` block.")
    return read_file(path, limit)


def _joined(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    tables = [part for part in parts if isinstance(part, datasets.Dataset)]
    if len(tables) < len(parts):
        return [row for part in parts for row in part]
    try:
        joined: Rows = datasets.concatenate_datasets(tables)
    except (ValueError, pa.ArrowException) as error:
        raise DataError(f"The files of the dataset do not have the same columns: {error}") from error
    return joined


def read_file(path: Path, limit: int | None = None) -> Rows:
    """Read a file; its suffix sets the format."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"Dataset {path.name} has an unknown suffix {path.suffix!r}.",
            hint=f"Known: {', '.join(sorted(_READERS))}, or a folder saved by `datasets`.",
        )
    try:
        return reader(path, limit)
    except OSError as error:
        raise DataError(f"Dataset {path.name} cannot be read: {error.strerror or error}.") from error


def _read_jsonl(path: Path, limit: int | None) -> Rows:
    with path.open("rb") as lines:
        return list(itertools.islice(_json_lines(path, lines), limit))


def _json_lines(path: Path, lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.isspace():
            yield json_line(path.name, number, line)


def _read_json(path: Path, limit: int | None) -> Rows:
    """Read a JSON array of objects; a file with one object per line is read as JSONL."""
    text = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        # The file holds one object per line, in spite of its suffix.
        if error.msg.startswith("unexpected content after document"):
            return _read_jsonl(path, limit)
        refuse_encoding(path.name, text)
        raise DataError(
            f"{path.name} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}).",
            hint="Write an array of objects, or one object per line.",
        ) from None
    refuse_rounding(path.name, text)
    if not isinstance(content, list):
        raise DataError(f"{path.name} is not a JSON array.", hint="Write an array of objects, or one object per line.")
    for number, row in enumerate(content, start=1):
        if not isinstance(row, dict):
            raise DataError(f"Element {number} of {path.name} is a JSON {type(row).__name__}, not an object.")
    return content[:limit]


def _read_csv(path: Path, limit: int | None) -> Rows:
    return list(itertools.islice(csv_file(path), limit))


def csv_file(path: Path) -> Iterator[dict[str, str]]:
    """Read a CSV or TSV file row by row."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as text:
            yield from csv_rows(path.name, text)
    except UnicodeDecodeError:
        refuse_encoding(path.name, path.read_bytes())
        raise


def _read_parquet(path: Path, limit: int | None) -> Rows:
    try:
        stored = pq.read_table(path, memory_map=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path.name} is not a Parquet file: {error}.") from None
    # Without the metadata of `datasets`, which would decode images and audio that nothing reads.
    stored = stored.replace_schema_metadata(None)
    try:
        return datasets.Dataset(stored if limit is None else stored.slice(0, limit))
    except ValueError as error:
        raise DataError(f"{path.name} has a column of a type that cannot be read: {error}.") from None


def _saved_dataset(path: Path, split: str) -> Rows:
    _check_files(path)
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        raise DataError(f"The saved dataset {path.name} cannot be loaded: {error}.") from error
    if isinstance(loaded, datasets.Dataset):
        return without_media(loaded)
    if split not in loaded:
        raise DataError(
            f"The saved dataset {path.name} has no split {split!r}.", hint=f"It has: {', '.join(sorted(loaded))}."
        )
    return without_media(loaded[split])


def _check_files(path: Path) -> None:
    """Reject a saved dataset whose index refers to files outside of it: `datasets` would read them."""
    for note in (path / "dataset_dict.json", *path.glob("state.json"), *path.glob("*/state.json")):
        if not note.exists():
            continue
        try:
            found = json.loads(note.read_bytes())
            named = [each["filename"] for each in found["_data_files"]] if "splits" not in found else found["splits"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{note.name} of {path.name} does not list its files: {error!r}.") from None
        for name in named:
            # Resolved, so that links cannot escape either.
            if not isinstance(name, str) or not (note.parent / name).resolve().is_relative_to(path.resolve()):
                raise DataError(f"{note.name} of {path.name} names {name!r}, which is outside of the folder.")


def without_media(rows: _Stored) -> _Stored:
    """Leave images and audio undecoded: nothing reads them, and decoders may not be installed."""
    if rows.features is None:
        return rows
    left = {name: _undecoded(feature) for name, feature in rows.features.items()}
    return rows if left == dict(rows.features) else rows.cast(datasets.Features(left))


def _undecoded(feature: Any) -> Any:
    if isinstance(feature, _MEDIA):
        return dataclasses.replace(feature, decode=False)
    if isinstance(feature, dict):
        return {name: _undecoded(each) for name, each in feature.items()}
    if isinstance(feature, list):
        return [_undecoded(each) for each in feature]
    inner = getattr(feature, "feature", None)
    return feature if inner is None else dataclasses.replace(feature, feature=_undecoded(inner))


def files_of_split(folder: Path, split: str) -> list[Path]:
    """Return the files of a folder that hold a split, in order."""
    files = _data_files(folder)
    if not files and (folder / "data").is_dir():
        files = _data_files(folder / "data")
    named = [file for file in files if file.stem == split or file.stem.startswith(f"{split}-")]
    if not named and split == "train":
        # A single set of files, whatever its name.
        named = files if len(files) == 1 or len({_set_of(file) for file in files}) == 1 else []
    if not named:
        found = ", ".join(file.name for file in files) or "no data file"
        raise DataError(f"The folder {folder.name} has no file for the split {split!r}.", hint=f"It holds: {found}.")
    if len(named) > 1 or _SHARD.fullmatch(named[0].stem):
        _require_whole_set(folder, split, named)
    return named


def _data_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in _READERS)


def _set_of(file: Path) -> tuple[str, str, str]:
    shard = _SHARD.fullmatch(file.stem)
    return (shard["name"], shard["count"], file.suffix) if shard else (file.stem, "", file.suffix)


def _require_whole_set(folder: Path, split: str, files: list[Path]) -> None:
    shards = [_SHARD.fullmatch(file.stem) for file in files]
    if None in shards or len({_set_of(file) for file in files}) > 1:
        raise DataError(
            f"The folder {folder.name} has several files for the split {split!r}: "
            f"{', '.join(file.name for file in files)}.",
            hint="Name one file as the path.",
        )
    present = {int(shard["at"]) for shard in shards if shard}
    count = int(_set_of(files[0])[1])
    if missing := sorted(set(range(count)) - present):
        raise DataError(
            f"The folder {folder.name} lacks {len(missing)} of the {count} files of the split {split!r}, "
            f"such as {_set_of(files[0])[0]}-{missing[0]:05d}-of-{count:05d}{files[0].suffix}.",
            hint="Download the dataset again.",
        )


_READERS: dict[str, Callable[[Path, int | None], Rows]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
