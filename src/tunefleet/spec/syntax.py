"""What is wrong with a text that is not YAML, in words and with its place."""

from __future__ import annotations

import re
from typing import Final

import yaml

from tunefleet.errors import Fault

_NOT_ALLOWED: Final = yaml.reader.Reader.NON_PRINTABLE
_BREAKS = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


def syntax_fault(error: yaml.YAMLError | UnicodeEncodeError, text: str) -> Fault:
    """Word what PyYAML found wrong with a text."""
    if isinstance(error, UnicodeEncodeError):
        return Fault("", "the text is not valid Unicode", *_place(text, error.start), hint="save it as UTF-8")
    if isinstance(error, yaml.reader.ReaderError):
        found = _NOT_ALLOWED.search(text)
        name = f", U+{ord(found[0]):04X}" if found else ""
        message = f"the text has a character that YAML does not allow{name} ({error.reason})"
        way_out = "take it out, or write it in double quotes with a backslash: \\x07 is U+0007"
        return Fault("", message, *_place(text, found.start() if found else 0), hint=way_out)
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error)
    hint: str | None = None
    if "but found another document" in problem:
        problem, hint = "there is a second document", "submit one document at a time, without `---` between"
    elif "mapping values are not allowed" in problem:
        hint = "is the line above indented wrongly, or does a value with `: ` lack quotes?"
    elif "cannot start any token" in problem and mark and _at(text, mark.line, mark.column) == "\t":
        hint = "indent with spaces, not tabs"
    return Fault("", problem, mark.line + 1 if mark else 0, mark.column + 1 if mark else 0, hint)


def _place(text: str, index: int) -> tuple[int, int]:
    """Return line and column of a character, from 1."""
    lines = _BREAKS.split(text[:index])
    return len(lines), len(lines[-1]) + 1


def _at(text: str, line: int, column: int) -> str:
    """Return the character at a place, from 0; empty if there is none."""
    lines = _BREAKS.split(text)
    return lines[line][column : column + 1] if line < len(lines) else ""
