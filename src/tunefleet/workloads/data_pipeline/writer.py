"""Writes rows to a file, atomically, and describes it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tunefleet.artifacts import hash_file
from tunefleet.errors import DataError
from tunefleet.workloads.data_pipeline.row_types import Row
from tunefleet.workloads.data_pipeline.spool import Spool
from tunefleet.workloads.data_pipeline.table_types import Type, TypeClash, arrow, widened

_GROUP_ROWS = 10_000


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
