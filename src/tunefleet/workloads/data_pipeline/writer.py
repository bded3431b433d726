"""Writes rows to a file, atomically, and describes it; a table gets the narrowest types that hold every value.

A column type is None (only null values so far), a name in `_ARROW`, a list with the type of its items, or a mapping
with the type of each key.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tunefleet.artifacts import hash_file
from tunefleet.errors import DataError
from tunefleet.workloads.data_pipeline.row_types import Row
from tunefleet.workloads.data_pipeline.spool import Spool

_GROUP_ROWS = 10_000
Type = Any
# Up to here a float represents every integer exactly.
_EXACT: Final = 2**53
_ARROW: Final = {
    "true or false": pa.bool_(),
    "text": pa.string(),
    "float": pa.float64(),
    "int": pa.int64(),
    "negative int": pa.int64(),
    "int beyond 53 bits": pa.int64(),
    "negative int beyond 53 bits": pa.int64(),
    "int beyond 63 bits": pa.uint64(),
}
_FROM: Final = {
    "float": ("int", "negative int"),
    "negative int": ("int",),
    "int beyond 53 bits": ("int",),
    "negative int beyond 53 bits": ("int", "negative int", "int beyond 53 bits"),
    "int beyond 63 bits": ("int", "int beyond 53 bits"),
}
"""Type → narrower types whose values it can all hold."""
_WIDER: Final = {frozenset({wide, narrow}): wide for wide, all_ in _FROM.items() for narrow in all_} | {
    frozenset({"negative int", "int beyond 53 bits"}): "negative int beyond 53 bits",
}


def write(rows: Iterable[Row], target: Path, file_format: str) -> dict[str, Any]:
    """Write a file and return its `name`, `rows`, `bytes` and `sha256`.

    Raises:
        DataError: If the values of a Parquet column have no common type.
    """
    draft = target.with_name(f".{target.name}.partial")
    count = (_parquet if file_format == "parquet" else _jsonl)(rows, draft)
    # Synced before the rename: after a power cut, a file with the final name is complete.
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(target)
    digest, size_bytes = hash_file(target)
    return {"name": target.name, "rows": count, "bytes": size_bytes, "sha256": digest}


def _jsonl(rows: Iterable[Row], draft: Path) -> int:
    count = 0
    with draft.open("wb") as file:
        for row in rows:
            file.write(orjson.dumps(row.values) + b"\n")
            count += 1
    return count


def _parquet(rows: Iterable[Row], draft: Path) -> int:
    # Two passes: the column types are known only after the last row, but are at the beginning of the file.
    waiting = Spool(draft)
    columns: dict[str, Type] = {}
    try:
        waiting.fill(_seen(rows, columns))
        schema = _schema(columns)
        with pq.ParquetWriter(draft, schema) as writer:
            for group in _groups(waiting):
                table = {name: [row.values.get(name) for row in group] for name in schema.names}
                writer.write_table(pa.table(table, schema=schema))
    finally:
        waiting.remove()
    return len(waiting)


def _seen(rows: Iterable[Row], columns: dict[str, Type]) -> Iterator[Row]:
    """Pass rows through, and widen the types of their columns."""
    for count, row in enumerate(rows, 1):
        for name, value in row.values.items():
            try:
                columns[name] = widened(columns.get(name), value, name)
            except TypeClash as clash:
                raise DataError(
                    f"Row {count:,} (number {row.number:,} of sources.{row.source}) does not fit into one table with "
                    f"the earlier rows: {clash.path!r} was {clash.known}, and is {clash.new} in it.",
                    hint="Write format: jsonl, or a map step with cast or keep.",
                ) from None
        yield row


def _schema(columns: dict[str, Type]) -> pa.Schema:
    try:
        return pa.schema([(name, arrow(found, name)) for name, found in columns.items()])
    except TypeClash as clash:
        raise DataError(
            f"{clash.path!r} holds only mappings without keys, which Parquet does not support.",
            hint="Write format: jsonl, or a map step with drop.",
        ) from None


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while group := list(itertools.islice(iterator, _GROUP_ROWS)):
        yield group


class TypeClash(Exception):
    """A value has no common type with those before it."""

    def __init__(self, path: str, known: str, new: str) -> None:
        super().__init__(f"{path}: {known}, {new}")
        self.path = path
        self.known = known
        self.new = new


def widened(known: Type, value: Any, path: str) -> Type:
    """Return the type that also holds a value; lists and mappings of `known` are changed in place."""
    if value is None:
        return known
    if isinstance(value, dict):
        known = {} if known is None else known
        if not isinstance(known, dict):
            raise TypeClash(path, _word(known), "mapping")
        for name, each in value.items():
            known[name] = widened(known.get(name), each, f"{path}.{name}")
        return known
    if isinstance(value, list):
        known = [None] if known is None else known
        if not isinstance(known, list):
            raise TypeClash(path, _word(known), "list")
        for each in value:
            known[0] = widened(known[0], each, f"{path}[]")
        return known
    new = _name(value)
    if known is None or known == new:
        return new
    both = _WIDER.get(frozenset({known, new})) if isinstance(known, str) else None
    if both is None:
        raise TypeClash(path, _word(known), new)
    return both


def arrow(found: Type, path: str) -> pa.DataType:
    """Return the Arrow type.

    Raises:
        TypeClash: If there are only mappings without keys, which Parquet does not support.
    """
    if isinstance(found, dict):
        if not found:
            raise TypeClash(path, "mapping without any key", "mapping without any key")
        return pa.struct([(name, arrow(each, f"{path}.{name}")) for name, each in found.items()])
    if isinstance(found, list):
        return pa.list_(arrow(found[0], f"{path}[]"))
    return pa.null() if found is None else _ARROW[found]


def _name(value: bool | str | float) -> str:
    # bool is an int in Python, so it comes first.
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "text"
    if isinstance(value, float):
        return "float"
    if value < 0:
        return "negative int" if value >= -_EXACT else "negative int beyond 53 bits"
    if value <= _EXACT:
        return "int"
    return "int beyond 53 bits" if value < 2**63 else "int beyond 63 bits"


def _word(known: Type) -> str:
    return known if isinstance(known, str) else "mapping" if isinstance(known, dict) else "list"
