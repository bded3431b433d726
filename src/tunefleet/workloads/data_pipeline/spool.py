"""Rows on disk with random access, for steps that need all rows but not in memory.

<name>.rows   one JSON array per line: source, number, values
<name>.json   the counts so far; written last: without it the spool is incomplete
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.workloads.data_pipeline.row_types import Row


class Spool:
    """A file of rows."""

    def __init__(self, path: Path) -> None:
        self._rows = path.with_suffix(".rows")
        self._note = path.with_suffix(".json")
        # 8 bytes per row, instead of a Python int of 32.
        self._starts = array("Q")

    def noted(self) -> dict[str, Any] | None:
        """Return the note written at completion; None if the spool is incomplete."""
        note_content = read_json(self._note)
        if note_content is None or not self._rows.exists():
            return None
        if not self._starts:
            self._index()
        return note_content

    def fill(self, rows: Iterable[Row]) -> None:
        """Write rows, replacing existing ones."""
        # First: an incomplete file must not look complete after a kill.
        self._note.unlink(missing_ok=True)
        self._starts = array("Q")
        at = 0
        with self._rows.open("wb") as file:
            for row in rows:
                line = orjson.dumps([row.source, row.number, row.values]) + b"\n"
                self._starts.append(at)
                at += file.write(line)

    def note(self, note_content: dict[str, Any]) -> None:
        """Mark the spool as complete."""
        write_json(self._note, note_content)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._starts)

    def __iter__(self) -> Iterator[Row]:
        """Yield all rows in their order."""
        with self._rows.open("rb") as file:
            for line in file:
                yield _row(line)

    def pick(self, numbers: Iterable[int]) -> Iterator[Row]:
        """Yield rows by their index in this spool, from 0."""
        with self._rows.open("rb") as file:
            for number in numbers:
                file.seek(self._starts[int(number)])
                yield _row(file.readline())

    def remove(self) -> None:
        """Delete the files."""
        self._rows.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def _index(self) -> None:
        at = 0
        with self._rows.open("rb") as file:
            for line in file:
                self._starts.append(at)
                at += len(line)


def _row(line: bytes) -> Row:
    source, number, values = orjson.loads(line)
    return Row(values, source, number)
