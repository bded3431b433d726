"""Reads the lines of JSONL and CSV; errors name the line."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from tunefleet.errors import DataError

_MANY_DIGITS: Final = re.compile(rb"\d{19}")
_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
# The range that orjson represents exactly.
_LEAST, _MOST = -(2**63), 2**64 - 1


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
