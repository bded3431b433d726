"""Reads the rows of a file from its bytes, each with its position, up to a limit."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

import orjson

from tunefleet.analysis.dataset.lines import csv_rows, json_line, refuse_encoding, refuse_rounding
from tunefleet.errors import DataError

LINES: Final = frozenset({".jsonl", ".ndjson"})
TABLES: Final = frozenset({".csv", ".tsv"})
ARRAY: Final = ".json"
COLUMNS: Final = ".parquet"
SUFFIXES: Final = LINES | TABLES | {ARRAY, COLUMNS}
T = TypeVar("T")
MAX_AT_ONCE: Final = 8 << 20
"""Parsing blocks all other threads of the server: a longer line or array is left to a worker."""


class ReadLimitReached(Exception):
    """The rest of a file is not read; the message holds the reason."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a file is read.

    Args:
        bytes: Maximum number of bytes.
        seconds: Maximum duration.
    """

    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row, or the error in its place.

    Args:
        line: Line where the row begins; the index in an array.
        fault: The error.
    """

    line: int
    values: dict[str, Any] | None = None
    fault: DataError | None = None


def found(name: str, pieces: Iterable[bytes], size_bytes: int, limits: Limits) -> Iterator[ReadRow]:
    """Yield the rows of a file.

    Args:
        name: File name; its suffix sets the format.
        pieces: The file's bytes, or the first of them.
        size_bytes: Size of the whole file.
        limits: How much of it is read; the time includes what the caller does between rows.

    Raises:
        DataError: If the file as a whole does not have the format of its suffix.
        Unseen: After the last row that was read, if there may be more.
    """
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            f"{name} has an unknown suffix {suffix!r}.",
            hint=f"Known: {', '.join(sorted(SUFFIXES))}. Write one JSON object per line, and name the file *.jsonl.",
        )
    if suffix == COLUMNS:
        raise ReadLimitReached("Parquet is read by workers only: preview it with a model's tokenizer.")
    ends_at = time.monotonic() + limits.seconds
    if suffix == ARRAY:
        rows = _array(name, pieces, size_bytes)
    else:
        lines = _in_time(_numbered(pieces, size_bytes, limits.bytes), ends_at, limits)
        rows = _table(name, lines) if suffix in TABLES else _lines(name, lines)
    yield from _in_time(rows, ends_at, limits)


def _in_time(given: Iterable[T], ends_at: float, limits: Limits) -> Iterator[T]:
    """Yield items until the time is up, and at least one; blank lines never become rows."""
    for each in given:
        yield each
        if time.monotonic() >= ends_at:
            raise ReadLimitReached(
                f"Only the rows read within {limits.seconds:g} seconds are shown; a worker reads all of them."
            )


def _lines(name: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[ReadRow]:
    for number, line in lines:
        if line.isspace() or not line:
            continue
        try:
            yield ReadRow(number, json_line(name, number, line))
        except DataError as fault:
            yield ReadRow(number, fault=fault)


def _array(name: str, pieces: Iterable[bytes], size_bytes: int) -> Iterator[ReadRow]:
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > MAX_AT_ONCE:
            raise ReadLimitReached(f"A JSON array of more than {MAX_AT_ONCE >> 20} MiB is read by workers only.")
    if len(content) < size_bytes:
        raise ReadLimitReached("A JSON array is previewed once it is uploaded completely.")
    if not content.strip():
        return
    text = bytes(content).removeprefix(codecs.BOM_UTF8)
    try:
        rows = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        # A file with the suffix of an array often holds JSON lines.
        if error.msg.startswith("unexpected content after document"):
            yield from _lines(name, enumerate(text.splitlines(), start=1))
            return
        refuse_encoding(name, text)
        raise DataError(
            f"{name} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}).",
            hint="Write an array of objects, or one object per line.",
        ) from None
    refuse_rounding(name, text)
    if not isinstance(rows, list):
        raise DataError(f"{name} is not a JSON array.", hint="Write an array of objects, or one object per line.")
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            yield ReadRow(number, row)
        else:
            fault = DataError(f"Element {number} of {name} is a JSON {type(row).__name__}, not an object.")
            yield ReadRow(number, fault=fault)


def _table(name: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[ReadRow]:
    rows = csv_rows(name, _texts(name, lines))
    for number, row in enumerate(rows, start=2):
        yield ReadRow(number, dict(row))


def _texts(name: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[str]:
    for number, line in lines:
        refuse_encoding(f"Line {number} of {name}", line)
        yield line.decode("utf-8-sig" if number == 1 else "utf-8") + "\n"


def _numbered(pieces: Iterable[bytes], size_bytes: int, most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield complete lines with their numbers; a last line that the limit cuts is left out."""
    rest, number, seen = bytearray(), 0, 0
    for piece in pieces:
        seen += len(piece)
        # A piece ends anywhere, also in the middle of a line or a character.
        *whole, last = piece.split(b"\n")
        for line in whole:
            number += 1
            rest += line
            yield number, bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > MAX_AT_ONCE:
            raise ReadLimitReached(
                f"Line {number + 1} is longer than {MAX_AT_ONCE >> 20} MiB; only a worker reads on from there."
            )
        # Checked after each piece; a line that the limit cuts is dropped below.
        if seen >= most_bytes:
            break
    if seen < size_bytes:
        raise ReadLimitReached(f"Only the first {seen / (1 << 20):,.1f} MiB were read; a worker reads all of it.")
    if rest:
        yield number + 1, bytes(rest)
