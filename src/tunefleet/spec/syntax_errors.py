"""PyYAML's syntax errors → one sentence that names the cause and where it starts, and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from tunefleet.errors import Fault
from tunefleet.validation_errors import cut

_NOT_ALLOWED: Final = yaml.reader.Reader.NON_PRINTABLE
# The line breaks that YAML 1.1 counts, so that positions match those of the parser.
_BREAKS: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
# `key:value`, which YAML reads as one string; not a URL or a Windows path.
_NO_SPACE: Final = re.compile(r"""\s*(?:-\s+)*(?P<key>[A-Za-z_][\w.-]*):(?P<value>[^\s:/\\,\]}][^\n]*)""")
_ENTRY: Final = re.compile(r" *(?:- +)*")
_QUOTES: Final = frozenset({"'", '"'})
_CLOSING: Final = {"[": "]", "{": "}"}
_QUOTE_IT: Final = "put the value in quotes"


def syntax_fault(error: yaml.YAMLError | UnicodeEncodeError, text: str, loader: Any) -> Fault:
    """Convert an error of PyYAML.

    Args:
        error: What the parser raised.
        text: What was parsed.
        loader: PyYAML's loader, to read the tokens before the error.
    """
    if isinstance(error, UnicodeEncodeError):
        return Fault("", "the file is not valid Unicode", *_position(text, error.start), hint="save it as UTF-8")
    if isinstance(error, yaml.reader.ReaderError):
        found = _NOT_ALLOWED.search(text)
        name = f", U+{ord(found[0]):04X}" if found else ""
        message = f"the file contains a character that YAML does not allow{name} ({error.reason})"
        escape = "remove it, or escape it in double quotes: \\x07 is U+0007"
        return Fault("", message, *_position(text, found.start() if found else 0), hint=escape)
    place = _Place.of(error, text, loader)
    return next((fault for explain in _CAUSES if (fault := explain(place)) is not None), place.as_is())


def missing_space(text: str) -> str | None:
    """Return how `key:value` is written with a space after the colon; `None` if the text is something else."""
    found = _NO_SPACE.fullmatch(text.partition("\n")[0].rstrip())
    return f"{found['key']}: {cut(found['value'])}" if found else None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the parser stopped; lines and columns count from 0.

    Args:
        problem: The parser's own words.
        context: What the parser was reading.
        start: Where that begins.
        brackets: Open brackets before the error: character, line, column.
        quoted: The last string in quotes before the error, if it spans several lines.
    """

    problem: str
    context: str
    line: int
    column: int
    start: tuple[int, int] | None
    lines: Sequence[str]
    brackets: Sequence[tuple[str, int, int]]
    quoted: yaml.ScalarToken | None

    @classmethod
    def of(cls, error: yaml.YAMLError, text: str, loader: Any) -> _Place:
        mark = getattr(error, "problem_mark", None)
        begin = getattr(error, "context_mark", None)
        line, column = (mark.line, mark.column) if mark else (0, 0)
        brackets, quoted = _read_tokens(text, loader, (line, column))
        return cls(
            str(getattr(error, "problem", None) or error),
            str(getattr(error, "context", None) or ""),
            line,
            column,
            (begin.line, begin.column) if begin else None,
            _BREAKS.split(text),
            brackets,
            quoted,
        )

    @property
    def written(self) -> str:
        """The line of the error."""
        return self.lines[self.line] if self.line < len(self.lines) else ""

    @property
    def character(self) -> str:
        """The character at the error; empty at the end of the line."""
        return self.written[self.column : self.column + 1]

    def before(self) -> int | None:
        """Return the last line with content before the error."""
        above = range(min(self.line, len(self.lines)) - 1, -1, -1)
        return next((number for number in above if not self.is_blank(number)), None)

    def is_blank(self, number: int) -> bool:
        line = self.lines[number].strip()
        return not line or line.startswith("#")

    def fault(self, message: str, hint: str, line: int | None = None, column: int | None = None) -> Fault:
        at_line, at_column = (self.line, self.column) if line is None else (line, column or 0)
        return Fault("", message, at_line + 1, at_column + 1, hint)

    def as_is(self) -> Fault:
        """Return the parser's own words, for errors that have no sentence here."""
        known = bool(self.lines) and (self.line, self.column) != (0, 0)
        reading = f" ({self.context})" if self.context else ""
        return Fault("", f"{self.problem}{reading}", *((self.line + 1, self.column + 1) if known else (0, 0)))


def _read_tokens(
    text: str, loader: Any, end: tuple[int, int]
) -> tuple[list[tuple[str, int, int]], yaml.ScalarToken | None]:
    brackets: list[tuple[str, int, int]] = []
    quoted: yaml.ScalarToken | None = None
    try:
        for token in yaml.scan(text, Loader=loader):
            start = (token.start_mark.line, token.start_mark.column)
            if start >= end:
                break
            if isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken):
                brackets.append(("[" if isinstance(token, yaml.FlowSequenceStartToken) else "{", *start))
            elif isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken) and brackets:
                brackets.pop()
            elif isinstance(token, yaml.ScalarToken):
                several = token.style in _QUOTES and token.end_mark.line > token.start_mark.line
                quoted = token if several else None
    except yaml.YAMLError:  # the error itself: the tokens before it are what is wanted
        pass
    return brackets, quoted


def _second_document(place: _Place) -> Fault | None:
    if "but found another document" not in place.problem:
        return None
    return place.fault("the file contains a second YAML document", "submit one document at a time, without `---`")


def _tab(place: _Place) -> Fault | None:
    indentation = place.written[: len(place.written) - len(place.written.lstrip())]
    if "\t" not in indentation or not ("cannot start any token" in place.problem or "tab character" in place.problem):
        return None
    count = sum("\t" in line[: len(line) - len(line.lstrip())] for line in place.lines)
    hint = "indent with spaces, not tabs" + (f" ({count} lines have tabs)" if count > 1 else "")
    return place.fault("the line is indented with a tab", hint, place.line, indentation.index("\t"))


def _open_quote(place: _Place) -> Fault | None:
    if "quoted scalar" in place.context and "end of stream" in place.problem and place.start is not None:
        quote = _at(place.lines, *place.start)
        return place.fault(f"the {quote} that opens here is never closed", f"add the closing {quote}", *place.start)
    if place.quoted is None or place.quoted.end_mark.line != place.line:
        return None
    start, quote = place.quoted.start_mark, place.quoted.style
    message = f"the {quote} that opens here is closed only in line {place.line + 1}"
    return place.fault(message, f"add the closing {quote} to line {start.line + 1}", start.line, start.column)


def _open_bracket(place: _Place) -> Fault | None:
    if "while parsing a flow" in place.context and place.start is not None:
        line, column = place.start
        bracket = _at(place.lines, line, column)
    elif place.brackets and not place.context.startswith("while scanning a"):
        bracket, line, column = place.brackets[-1]
    else:
        return None
    if bracket not in _CLOSING:
        return None
    closing = _CLOSING[bracket]
    if place.character in {"]", "}"} and place.character != closing:
        message = f"the {bracket} that opens here is closed with {place.character} in line {place.line + 1}"
        return place.fault(message, f"write {closing}", line, column)
    inside = _indentation(place.written) > _indentation(place.lines[line]) or place.line == line
    if not place.written.strip():
        return place.fault(f"the {bracket} that opens here is never closed", f"add {closing}", line, column)
    if not inside:
        return place.fault(
            f"the {bracket} that opens here is not closed before line {place.line + 1}", f"add {closing}", line, column
        )
    message = f"the {bracket} of line {line + 1}, column {column + 1} is not closed, or a comma is missing"
    return place.fault(message, f"add {closing}, or a comma between two entries")


def _start_of_value(place: _Place) -> Fault | None:
    if "cannot start any token" in place.problem and place.character:
        return place.fault(f"a value cannot start with {place.character}", _QUOTE_IT)
    if "alphabetic or numeric character" in place.problem and place.start is not None:
        first = _at(place.lines, *place.start)
        what = "an alias" if first == "*" else "an anchor"
        message = f"a value that starts with {first} is {what}, and {what} needs a name"
        return place.fault(message, f"{_QUOTE_IT} if it is a string", *place.start)
    if "mapping keys are not allowed" in place.problem:
        return place.fault("a value cannot start with ? and a space", _QUOTE_IT)
    if "unknown escape character" in place.problem or "hexdecimal number" in place.problem:
        start = place.written.rfind("\\", 0, place.column + 1)
        escape = place.written[start : start + 2]
        message = f"{escape} is not an escape sequence in double quotes"
        return place.fault(message, "use single quotes, or write each backslash twice")
    return None


def _anchor(place: _Place) -> Fault | None:
    name = re.match(r"[*&][^\s,\[\]{}]+", place.written[place.column :])
    if "undefined alias" in place.problem:
        alias = name[0] if name else "the alias"
        message = f"{cut(alias)} has no anchor &{cut(alias[1:])} above it"
        return place.fault(message, "define the anchor before the alias, or put the value in quotes")
    if "second occurrence" in place.problem and place.start is not None:
        message = f"the anchor {cut(name[0]) if name else ''} is already defined in line {place.start[0] + 1}"
        return place.fault(message, "use another name for one of them")
    return None


def _missing_colon(place: _Place) -> Fault | None:
    if "could not find expected ':'" not in place.problem or place.start is None:
        return None
    line, column = place.start
    meant = missing_space(place.lines[line])
    if meant is not None:
        return _without_space(place, line, meant)
    word = cut(place.lines[line][column:].strip())
    return place.fault(f"{word!r} is neither `key: value` nor `- entry`", "add a colon after the key", line, column)


def _unexpected_colon(place: _Place) -> Fault | None:
    if "mapping values are not allowed" not in place.problem:
        return None
    earlier = re.match(r"\s*(?:-\s+)*[^\s'\"]+:\s+(?=\S)", place.written[: place.column])
    if earlier is not None:
        return place.fault("the value contains `: `, which starts another key", "put the whole value in quotes")
    above = place.before()
    if above is None:
        return None
    meant = missing_space(place.lines[above])
    if meant is not None:
        return _without_space(place, above, meant)
    deep = _indentation(place.written)
    # The column of its key: `- name: x` has it two columns further.
    outer = len(_ENTRY.match(place.lines[above])[0])  # type: ignore[index]  # matches everything
    if ":" not in place.lines[above]:
        line = cut(place.lines[above].strip())
        message = f"{line!r} is neither `key: value` nor `- entry`"
        return place.fault(message, "add a colon after the key", above, outer)
    message = f"the line is indented by {_spaces(deep)}, below line {above + 1} with {outer}, which already has a value"
    return place.fault(
        message, f"indent it by {_spaces(outer)}, or remove the value of line {above + 1}", place.line, deep
    )


def _without_space(place: _Place, line: int, meant: str) -> Fault:
    column = place.lines[line].index(":")
    return place.fault("there is no space after the colon", f"write `{meant}`", line, column)


def _unexpected_token(place: _Place) -> Fault | None:
    if "block" not in place.context or "did not find expected" not in place.problem:
        return None
    if place.character in {"]", "}"}:
        return place.fault(f"the {place.character} closes nothing", "remove it, or put the value in quotes")
    if place.character == ",":
        return place.fault("a comma follows the value", "put the whole value in quotes, or write a list: [a, b]")
    deep = _indentation(place.written)
    if place.column != deep:
        message = f"text follows a value that has already ended: {cut(place.written[place.column :])!r}"
        return place.fault(message, "put the whole value in quotes")
    above = _levels(place)
    if deep not in above:
        known = " or ".join(map(str, above))
        message = f"the line is indented by {_spaces(deep)}, which matches no block above it"
        return place.fault(message, f"indent it by {known} spaces, like the keys that it belongs to")
    if place.written.lstrip().startswith("- "):
        hint = "put the list under its own key, or write the entry as `key: value`"
        return place.fault("a list entry (`- `) is among the keys of a mapping", hint)
    if "'-' indicator" in place.problem:
        return place.fault("a key is among the entries of a list", "start the line with `- `, or indent it less")
    return None


def _levels(place: _Place) -> list[int]:
    """Return the indentations of the blocks above the error, outermost first."""
    levels: list[int] = []
    for number in range(place.line):
        if place.is_blank(number):
            continue
        deep = _indentation(place.lines[number])
        levels = [*(level for level in levels if level < deep), deep]
    return levels


_CAUSES: Final[tuple[Callable[[_Place], Fault | None], ...]] = (
    _second_document,
    _tab,
    _open_quote,
    _anchor,
    _start_of_value,
    _open_bracket,
    _missing_colon,
    _unexpected_colon,
    _unexpected_token,
)


def _spaces(count: int) -> str:
    return "1 space" if count == 1 else f"{count} spaces"


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _at(lines: Sequence[str], line: int, column: int) -> str:
    return lines[line][column : column + 1] if line < len(lines) else ""


def _position(text: str, index: int) -> tuple[int, int]:
    """Return line and column of a character, from 1."""
    lines = _BREAKS.split(text[:index])
    return len(lines), len(lines[-1]) + 1
