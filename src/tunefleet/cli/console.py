"""Where output goes: a terminal gets colour and width, a pipe gets plain text, `--json` gets one document.

Colour and `NO_COLOR` are Rich's business; what is printed to a pipe is never cut to a width.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead; its shape is that of the API.")]

_PIPE_WIDTH = 10_000
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


@cache
def _console(error: bool, file: Any) -> Console:
    width = None if file.isatty() else _PIPE_WIDTH
    return Console(stderr=error, theme=_THEME, width=width, highlight=False, soft_wrap=False)


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
        console.print(text, style=style, markup=False)
        return
    # Rich fills the cells of a table with spaces, which are of no use in a pipe.
    with console.capture() as captured:
        console.print(text, markup=False)
    console.file.write("\n".join(row.rstrip() for row in captured.get().split("\n")))


def print_json(value: BaseModel | Iterable[BaseModel] | dict[str, Any]) -> None:
    """Print one JSON document; models and lists of models become objects and arrays."""
    if isinstance(value, BaseModel):
        plain: Any = value.model_dump(mode="json")
    elif isinstance(value, dict):
        plain = value
    else:
        plain = [item.model_dump(mode="json") for item in value]
    sys.stdout.write(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")


def status_text(status: str) -> Text:
    """Return a status in its colour."""
    return Text(status, style=_STATUS_STYLES.get(status, "dim"))


def table(*heads: str, right: Sequence[str] = (), wide: str | None = None) -> Table:
    """Make a table without lines.

    Args:
        heads: Titles of the columns.
        right: Columns of numbers.
        wide: The column that is cut when the terminal is too narrow.
    """
    made = Table(box=None, pad_edge=False, header_style="head", padding=(0, 2, 0, 0))
    for head in heads:
        # Rich takes room from columns that may wrap first; what `cut` made ends in an ellipsis there instead.
        made.add_column(
            head.upper(), justify="right" if head in right else "left", no_wrap=head != wide, overflow="ellipsis"
        )
    return made


def cut(text: str, style: str = "") -> Text:
    """Return text for the column of a table that is cut when the terminal is too narrow."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def facts(rows: Iterable[tuple[str, RenderableType | None]]) -> Table:
    """Make a list of names and values; values that are `None` are left out."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        if value is not None and value != "":
            made.add_row(name, value)
    return made
