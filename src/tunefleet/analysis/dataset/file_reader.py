"""Reads the rows of a file from its bytes, each with its position, up to a limit."""

from __future__ import annotations

import codecs
import csv
import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

import orjson

from tunefleet.errors import DataError

LINES: Final = frozenset({".jsonl", ".ndjson"})
TABLES: Final = frozenset({".csv", ".tsv"})
ARRAY: Final = ".json"
COLUMNS: Final = ".parquet"
SUFFIXES: Final = LINES | TABLES | {ARRAY, COLUMNS}
T = TypeVar("T")
MAX_AT_ONCE: Final = 8 << 20
"""Parsing blocks all other threads of the server: a longer line or array is left to a worker."""
_MANY_DIGITS: Final = re.compile(rb"\d{19}")
_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
# The range that orjson represents exactly.
_LEAST, _MOST = -(2**63), 2**64 - 1


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
                f"Line {number + 1} is longer than {MAX_AT_ONCE >> 20} MiB; only a worker reads the rest."
            )
        # Checked after each piece; a line that the limit cuts is dropped below.
        if seen >= most_bytes:
            break
    if seen < size_bytes:
        raise ReadLimitReached(f"Only the first {seen / (1 << 20):,.1f} MiB were read; a worker reads all of it.")
    if rest:
        yield number + 1, bytes(rest)


def json_line(name: str, number: int, line: bytes) -> dict[str, Any]:
    """Read one line of a JSONL file.

    Args:
        name: File name, for messages.
        number: Line number, from 1.
        line: The raw line.

    Raises:
        DataError: If it is not one JSON object.
    """
    # Some editors put a byte order mark at the start of a file.
    try:
        row = orjson.loads(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
    except orjson.JSONDecodeError as error:
        refuse_encoding(f"Line {number} of {name}", line)
        raise DataError(
            f"Line {number} of {name} is not valid JSON (column {error.colno}: {error.msg}).",
            hint="Each line must be one JSON object.",
        ) from None
    refuse_rounding(f"Line {number} of {name}", line)
    if not isinstance(row, dict):
        raise DataError(
            f"Line {number} of {name} holds a JSON {type(row).__name__}, not an object.",
            hint="Each line must be one JSON object, such as {'prompt': …, 'response': …}.",
        )
    return row


def refuse_encoding(where: str, content: bytes) -> None:
    """Reject text in an encoding other than UTF-8.

    Raises:
        DataError: If the text is not UTF-8; the message names the first invalid byte.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{where} is UTF-16 text, not UTF-8.", hint="Save the file as UTF-8.")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start]
        column = error.start - before.rfind(b"\n")
        line = f"line {before.count(10) + 1}, " if b"\n" in before else ""
        found = f"byte 0x{content[error.start]:02x} at {line}column {column}"
        raise DataError(f"{where} is not UTF-8 text ({found}).", hint="Save the file as UTF-8.") from None


def refuse_rounding(where: str, content: bytes) -> None:
    """Reject integers of more than 64 bits, which orjson would convert to floats.

    Raises:
        DataError: If the text holds one.
    """

    def held(digits: str) -> int:
        value = int(digits)
        if not _LEAST <= value <= _MOST:
            raise DataError(
                f"{where} contains the integer {digits[:40]}, which has more than 64 bits.",
                hint='Write it as a string: "…".',
            )
        return value

    # The regular expression is cheap; the standard library parses only the rare line with a long number.
    if _MANY_DIGITS.search(content):
        json.loads(content.removeprefix(b"\xef\xbb\xbf"), parse_int=held)


def csv_rows(name: str, text: Iterable[str]) -> Iterator[dict[str, str]]:
    """Read CSV row by row; TSV if the file name ends with it.

    Args:
        name: File name, for messages.
        text: Its lines, with their line breaks.

    Raises:
        DataError: If a row does not have the fields of the header, or is malformed.
    """
    # The default limit of 128 KiB is too small for a field that holds a document.
    csv.field_size_limit(1 << 30)
    delimiter = "\t" if name.lower().endswith(".tsv") else ","
    reader = csv.DictReader(text, delimiter=delimiter, strict=True)
    try:
        header = reader.fieldnames or ()
        _refuse_separator(name, header, delimiter)
        if twice := next((column for column in header if list(header).count(column) > 1), None):
            raise DataError(f"{name} has two columns named {twice!r}.", hint="Rename one of them.")
        for row in reader:
            # DictReader reports a surplus field under None, and a missing one as None.
            if None in row or None in row.values():
                raise DataError(
                    f"Line {reader.line_num} of {name} does not have the {len(reader.fieldnames or ())} fields"
                    " of the header.",
                    hint="Put fields with commas or line breaks into double quotes.",
                )
            yield row
    except csv.Error as error:
        raise DataError(f"Line {reader.reader.line_num} of {name} is not valid CSV: {error}.") from None


def _refuse_separator(name: str, header: Sequence[str], expected: str) -> None:
    """Reject a file with another separator: each row would become a single column."""
    # With the right separator, a file has more than one column.
    if len(header) != 1:
        return
    for separator, what in _SEPARATORS.items():
        if separator != expected and separator in header[0]:
            raise DataError(
                f"{name} has a single column {header[0]!r}: its columns seem to be separated by {what}.",
                hint="Save it with commas as .csv, or with tabs as .tsv.",
            )
