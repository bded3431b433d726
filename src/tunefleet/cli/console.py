"""Console output: a terminal gets colour and width, a pipe gets plain text, `--json` gets one document.

Rich handles colour and `NO_COLOR`. Output to a pipe is never truncated.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Span, Text
from rich.theme import Theme

from tunefleet.cli.program import as_called, commands_in, program
from tunefleet.errors import printable

Json = Annotated[bool, typer.Option("--json", help="Print JSON in the format of the API.")]

# Rich needs a width for a pipe, too; no line of a table reaches this one.
_PIPE_WIDTH = 10_000
_GAP = 2
# Line and tab, the blanks of all scripts, and the joiners of letters and emoji.
_ALLOWED = (
    "\n\t\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200c\u200d\u202f\u205f\u3000"
)
# Control characters that `json.dumps` leaves as they are and a terminal interprets.
_ABOVE_ASCII = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_THEME = Theme(
    {
        "dim": "bright_black",
        "good": "green",
        "bad": "bold red",
        "warn": "yellow",
        "busy": "cyan",
        "head": "bold",
        "id": "cyan",
    }
)
_STATUS_STYLES = {
    "completed": "good",
    "failed": "bad",
    "cancelled": "warn",
    "running": "busy",
    "dispatched": "busy",
    "online": "good",
    "unreachable": "warn",
    "lost": "bad",
    "offline": "dim",
}


class _Screen(Console):
    """A console whose commands work in this shell, and that escapes control characters on a terminal.

    Nearly every screen shows text of tasks and workers, which must not move the cursor, set a title or hide output.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with escaped texts; the control codes of Rich itself are no text and pass."""
        if isinstance(renderable, Text):
            renderable = _as_called(renderable)
        if self.is_terminal and isinstance(renderable, str):
            renderable = plain(renderable)
        elif self.is_terminal and isinstance(renderable, Text):
            renderable = _plain_text(renderable)
        return super().render(renderable, options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Turn a string into a `Text`; cells of tables are measured and rendered this way."""
        return super().render_str(as_called(text), **options)


def plain(text: str, keep: str = "") -> str:
    """Return a text for a terminal: lines, tabs and blanks of all scripts stay, control characters are escaped."""
    return printable(text, _ALLOWED + keep)


def _plain_text(text: Text) -> Text:
    # The common case needs no new text.
    if text.plain.isprintable() or (spelt := plain(text.plain)) == text.plain:
        return text
    made = text.blank_copy(spelt)
    # An escaped character is longer than the original: the style spans move with it.
    at = [0, *accumulate(len(plain(each)) for each in text.plain)]
    made.spans = [Span(at[min(start, len(text))], at[min(end, len(text))], style) for start, end, style in text.spans]
    return made


def _as_called(text: Text) -> Text:
    spans = commands_in(text.plain)
    if not spans:
        return text
    pieces = text.divide([at for span in spans for at in span])
    for piece in pieces[1::2]:
        piece.plain = program()
    return text.blank_copy().join(pieces)


@cache
def _console(error: bool, file: Any) -> Console:
    width = None if file.isatty() else _PIPE_WIDTH
    # Highlighting is off: Rich would colour numbers and paths in texts of tasks.
    return _Screen(stderr=error, theme=_THEME, width=width, highlight=False, soft_wrap=False)


def out() -> Console:
    """Return the console of standard output."""
    return _console(False, sys.stdout)


def err() -> Console:
    """Return the console of standard error: progress, questions, errors."""
    return _console(True, sys.stderr)


def say(text: RenderableType = "", *, style: str | None = None) -> None:
    """Print a line or a renderable to standard output; square brackets in text mean themselves."""
    console = out()
    if console.is_terminal:
        console.print(text, style=style, markup=False, crop=False)
        return
    # Rich pads the cells of a table with spaces, which only disturb in a pipe.
    with console.capture() as captured:
        console.print(text, markup=False)
    console.file.write("\n".join(row.rstrip() for row in captured.get().split("\n")))


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show a spinner with a text on standard error while the block runs; nothing outside of a terminal."""
    if not err().is_terminal:
        yield
        return
    with err().status(Text(text, "dim")):
        yield


def show_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on standard error, one per line."""
    for warning in warnings:
        err().print(Text(f"Warning: {warning}", style="warn"))


def print_json(value: BaseModel | Iterable[BaseModel] | dict[str, Any]) -> None:
    """Print one JSON document; models and lists of models become objects and arrays."""
    if isinstance(value, BaseModel):
        document: Any = value.model_dump(mode="json")
    elif isinstance(value, dict):
        document = value
    else:
        document = [item.model_dump(mode="json") for item in value]
    # Not through Rich, which would wrap long lines.
    sys.stdout.write(json_text(document, indent=2) + "\n")


def json_text(document: Any, *, indent: int | None = None) -> str:
    """Return a document as JSON: letters of all scripts stay readable, control characters are escaped."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return _ABOVE_ASCII.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def status_text(status: str) -> Text:
    """Return a status in its colour."""
    return Text(status, style=_STATUS_STYLES.get(status, "dim"))


def table(*heads: str | Text, right: Sequence[str] = (), wide: str | tuple[str, ...] = ()) -> Table:
    """Build a table without lines.

    Args:
        heads: Titles of the columns, shown in capitals; a `Text`, such as an id, is shown unchanged.
    """
    may_shrink = (wide,) if isinstance(wide, str) else wide
    made = Table(box=None, pad_edge=False, header_style="head", padding=(0, 2, 0, 0))
    for head in heads:
        # Rich shrinks columns that may wrap first; a cell made by `cut` ends in an ellipsis there instead.
        made.add_column(
            head if isinstance(head, Text) else head.upper(),
            justify="right" if head in right else "left",
            no_wrap=head not in may_shrink,
            overflow="ellipsis",
        )
    return made


def cut(text: str, style: str = "") -> Text:
    """Return text for a table cell that is truncated when the terminal is too narrow."""
    # Columns are measured before they are rendered.
    return Text(as_called(text), style=style, no_wrap=True, overflow="ellipsis")


def facts(rows: Iterable[tuple[str, RenderableType | None]]) -> RenderableType:
    """Build a list of names and values; values that are `None` are left out."""
    return _Facts([(name, value) for name, value in rows if value is not None and str(value)])


def next_block(commands: Iterable[tuple[str, str]]) -> RenderableType:
    """Build the list of next commands: a label and a command to copy in each line."""
    return facts([(label, Text(command, no_wrap=True, overflow="ignore")) for label, command in commands])


class _Facts:
    """Names next to their values; a value with a word that is too long gets a line of its own."""

    def __init__(self, rows: Sequence[tuple[str, RenderableType]]) -> None:
        self._rows = rows
        self._name_width = max((len(name) for name, _ in rows), default=0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width - self._name_width - _GAP
        listed = self._table()
        for name, value in self._rows:
            text = Text(value) if isinstance(value, str) else value
            text = _as_called(text) if isinstance(text, Text) else text
            if isinstance(text, Text) and not text.no_wrap and _longest_word(text) > width:
                yield listed
                yield Text(name, style="dim")
                # Let the terminal wrap it: a copied value then has no blanks or line ends inside.
                yield Text(text.plain, style=text.style, no_wrap=True, overflow="ignore")
                listed = self._table()
            else:
                listed.add_row(name, text)
        yield listed

    def _table(self) -> Table:
        made = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
        made.add_column(style="dim", no_wrap=True, min_width=self._name_width)
        made.add_column(overflow="fold")
        return made


def _longest_word(text: Text) -> int:
    return max((len(word) for word in text.plain.split()), default=0)
