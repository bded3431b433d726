"""From the bytes of a file to its rows, each with where it begins; nothing is read beyond a limit."""

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
"""What is parsed in one go holds all other threads up: a line or an array of more bytes is left to a worker."""


class Unseen(Exception):
    """The rest of a file is not looked at; the message says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a file is looked at.

    Args:
        bytes: How many of its bytes.
        seconds: For how long.
    """

    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Found:
    """A row, or why there is none.

    Args:
        line: Where it begins; of an array its number.
        fault: What is wrong with it.
    """

    line: int
    values: dict[str, Any] | None = None
    fault: DataError | None = None


def found(name: str, pieces: Iterable[bytes], size_bytes: int, limits: Limits) -> Iterator[Found]:
    """Yield the rows of a file.

    Args:
        name: Of the file; its end says the format.
        pieces: Its bytes, or the first of them.
        size_bytes: Of the whole file.
        limits: How much of it is looked at; what is done with the rows between takes of the time, too.

    Raises:
        DataError: If the file as a whole is not what its name says.
        Unseen: Behind the rows that were read, if there may be more.
    """
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            f"{name} has no format that is known by its suffix {suffix!r}.",
            hint=f"Known: {', '.join(sorted(SUFFIXES))}. Write one JSON object a line, and call the file *.jsonl.",
        )
    if suffix == COLUMNS:
        raise Unseen("Parquet is read by workers only: look at it with a model's tokenizer.")
    ends_at = time.monotonic() + limits.seconds
    if suffix == ARRAY:
        rows = _array(name, pieces, size_bytes)
    else:
        lines = _in_time(_numbered(pieces, size_bytes, limits.bytes), ends_at, limits)
        rows = _table(name, lines) if suffix in TABLES else _lines(name, lines)
    yield from _in_time(rows, ends_at, limits)


def _in_time(given: Iterable[T], ends_at: float, limits: Limits) -> Iterator[T]:
    """Yield what is given until the time is over, and one at least; blank lines never become rows."""
    for each in given:
        yield each
        if time.monotonic() >= ends_at:
            raise Unseen(
                f"Only what could be read in {limits.seconds:g} seconds was looked at; a worker reads all of it."
            )


def _lines(name: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[Found]:
    for number, line in lines:
        if line.isspace() or not line:
            continue
        try:
            yield Found(number, json_line(name, number, line))
        except DataError as fault:
            yield Found(number, fault=fault)


def _array(name: str, pieces: Iterable[bytes], size_bytes: int) -> Iterator[Found]:
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > MAX_AT_ONCE:
            raise Unseen(f"A JSON array of more than {MAX_AT_ONCE >> 20} MiB is read by workers only.")
    if len(content) < size_bytes:
        raise Unseen("A JSON array is looked at once all of it is here.")
    if not content.strip():
        return
    text = bytes(content).removeprefix(codecs.BOM_UTF8)
    try:
        rows = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("unexpected content after document"):
            yield from _lines(name, enumerate(text.splitlines(), start=1))
            return
        refuse_encoding(name, text)
        raise DataError(
            f"{name} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}).",
            hint="Write an array of objects, or one object a line.",
        ) from None
    refuse_rounding(name, text)
    if not isinstance(rows, list):
        raise DataError(f"{name} is not a JSON array.", hint="Write an array of objects, or one object a line.")
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            yield Found(number, row)
        else:
            fault = DataError(f"Element {number} of {name} is a JSON {type(row).__name__}, not an object.")
            yield Found(number, fault=fault)


def _table(name: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[Found]:
    rows = csv_rows(name, _texts(name, lines))
    for number, row in enumerate(rows, start=2):
        yield Found(number, dict(row))


def _texts(name: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[str]:
    for number, line in lines:
        refuse_encoding(f"Line {number} of {name}", line)
        yield line.decode("utf-8-sig" if number == 1 else "utf-8") + "\n"


def _numbered(pieces: Iterable[bytes], size_bytes: int, most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines with their numbers; a last one that the limit cuts is left out."""
    rest, number, seen = bytearray(), 0, 0
    for piece in pieces:
        seen += len(piece)
        *whole, last = piece.split(b"\n")
        for line in whole:
            number += 1
            rest += line
            yield number, bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > MAX_AT_ONCE:
            raise Unseen(
                f"Line {number + 1} is longer than {MAX_AT_ONCE >> 20} MiB; only a worker reads on from there."
            )
        if seen >= most_bytes:
            break
    if seen < size_bytes:
        raise Unseen(f"Only the first {seen / (1 << 20):,.1f} MiB were looked at; a worker reads all of it.")
    if rest:
        yield number + 1, bytes(rest)
