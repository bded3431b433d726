"""Read a dataset from a local file or folder into rows.

Knows formats (JSONL, JSON, CSV, TSV, Parquet, a saved dataset) and where a row stands in its file; knows no column by
name and nothing of models. Nothing is cached outside the memory of the process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tunefleet.dataset.lines import csv_rows, json_line, refuse_rounding
from tunefleet.errors import DataError

Rows = Sequence[Mapping[str, Any]]


def read_path(path: Path, split: str, limit: int | None = None) -> Rows:
    """Read one split from a file or a folder.

    Args:
        path: A data file; a folder saved by `datasets`; or a folder with one file for each split.
        split: The bare name of the split, such as `train`. A file is a single split whatever its name.
        limit: Read no more rows than this, if the format allows to stop early.

    Returns:
        The rows in the order of the file.

    Raises:
        DataError: If the path does not exist, is of an unknown format, or is malformed.
    """
    if path.is_dir():
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
            return _saved_dataset(path, split)
        return read_file(file_of_split(path, split), limit)
    if not path.exists():
        raise DataError(f"The dataset {path} does not exist.", hint="Mend the path in the spec's `data` block.")
    return read_file(path, limit)


def read_file(path: Path, limit: int | None = None) -> Rows:
    """Read a file of any format that is known by its suffix.

    Raises:
        DataError: If the suffix is unknown or the content is malformed.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"The dataset {path.name} has a format that is not known by its suffix {path.suffix!r}.",
            hint=f"Known: {', '.join(sorted(_READERS))}, or a folder saved by `datasets`.",
        )
    try:
        return reader(path, limit)
    except UnicodeDecodeError as error:
        raise DataError(f"The dataset {path.name} is not UTF-8 text: {error}.", hint="Convert it to UTF-8.") from None
    except OSError as error:
        raise DataError(f"The dataset {path.name} cannot be read: {error.strerror or error}.") from error


def _read_jsonl(path: Path, limit: int | None) -> Rows:
    with path.open("rb") as lines:
        return list(itertools.islice(_json_lines(path, lines), limit))


def _json_lines(path: Path, lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.isspace():
            yield json_line(path.name, number, line)


def _read_json(path: Path, limit: int | None) -> Rows:
    """Read a JSON array of objects; what turns out to be one object a line is read as JSONL."""
    text = path.read_bytes()
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("unexpected content after document"):
            return _read_jsonl(path, limit)
        raise DataError(
            f"{path.name} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}).",
            hint="Write an array of objects, or one object a line.",
        ) from None
    refuse_rounding(path.name, text)
    if not isinstance(content, list):
        raise DataError(f"{path.name} is not a JSON array.", hint="Write an array of objects, or one object a line.")
    for number, row in enumerate(content, start=1):
        if not isinstance(row, dict):
            raise DataError(f"Element {number} of {path.name} is a JSON {type(row).__name__}, not an object.")
    return content[:limit]


def _read_csv(path: Path, limit: int | None) -> Rows:
    return list(itertools.islice(csv_file(path), limit))


def csv_file(path: Path) -> Iterator[dict[str, str]]:
    """Read a CSV or TSV file row by row.

    Raises:
        DataError: If a row does not have the fields of the header, or is malformed.
    """
    with path.open(encoding="utf-8-sig", newline="") as text:
        yield from csv_rows(path.name, text)


def _read_parquet(path: Path, limit: int | None) -> Rows:
    try:
        table = pq.read_table(path, memory_map=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path.name} is not a Parquet file: {error}.") from None
    return datasets.Dataset(table if limit is None else table.slice(0, limit))


def _saved_dataset(path: Path, split: str) -> Rows:
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        raise DataError(f"The saved dataset {path.name} cannot be loaded: {error}.") from error
    if isinstance(loaded, datasets.Dataset):
        return loaded
    if split not in loaded:
        raise DataError(
            f"The saved dataset {path.name} has no split {split!r}.", hint=f"It has: {', '.join(sorted(loaded))}."
        )
    return loaded[split]


def file_of_split(folder: Path, split: str) -> Path:
    """Return the one file of a folder that holds a split.

    Raises:
        DataError: If there is none, or more than one.
    """
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _READERS)
    named = [file for file in files if file.stem == split or file.stem.startswith(f"{split}-")]
    if len(named) == 1:
        return named[0]
    if len(named) > 1:
        raise DataError(
            f"The folder {folder.name} has several files for the split {split!r}: "
            f"{', '.join(file.name for file in named)}.",
            hint="Name one file as the path.",
        )
    if len(files) == 1 and split == "train":
        return files[0]
    found = ", ".join(file.name for file in files) or "no data file"
    raise DataError(f"The folder {folder.name} has no file for the split {split!r}.", hint=f"It holds: {found}.")


_READERS: dict[str, Callable[[Path, int | None], Rows]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
