"""Streaming output of answers: one as it arrives, several side by side; a pipe gets complete answers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tunefleet.cli.console import err, out, plain, say
from tunefleet.errors import TunefleetError
from tunefleet.schemas.chat import ChatPiece

_EVERY_S = 0.1
# Free lines at the bottom of the screen: the cursor's, and one for what the user types in the meantime.
_BELOW = 2


class Answer:
    """The answer of one model while it streams."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.last: ChatPiece | None = None
        # Why the answer is stalled, if the server knows.
        self.waiting = ""
        self.error: TunefleetError | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of `--json`."""
        usage = self.last.usage if self.last is not None else None
        counted = None if usage is None else usage.model_dump()
        return {
            "model": self.name,
            "text": self.text,
            "finish_reason": self.last and self.last.finish,
            "usage": counted,
        }


def follow(answers: Sequence[Answer], threads: Sequence[threading.Thread], *, shown: bool) -> None:
    """Show the answers until the threads that receive them have ended.

    Raises:
        KeyboardInterrupt: On Ctrl-C; the text received so far is printed.
    """
    if not shown:
        _wait(threads)
    elif len(answers) == 1:
        _stream(answers[0], threads[0])
    elif out().is_terminal:
        _side_by_side(answers, threads)
    else:
        _wait(threads)
        for answer in answers:
            say(f"{answer.name}:", style="head")
            say(answer.text)


def _wait(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def _stream(answer: Answer, thread: threading.Thread) -> None:
    printed, waiting = 0, ""
    try:
        while thread.is_alive():
            printed = _print_new(answer, printed)
            if answer.waiting != waiting:
                waiting = answer.waiting
                if waiting:
                    err().print(Text(f"{waiting} Waiting…", style="dim"))
            thread.join(_EVERY_S)
    finally:
        # Also after Ctrl-C: what arrived since the last round.
        _print_new(answer, printed)
        sys.stdout.write("\n")
        sys.stdout.flush()


def _print_new(answer: Answer, printed: int) -> int:
    """Print the new part of an answer, and return the length printed so far."""
    # Read once: another thread appends to it.
    text = answer.text
    fresh = text[printed:]
    sys.stdout.write(plain(fresh) if out().is_terminal else fresh)
    sys.stdout.flush()
    return len(text)


def _side_by_side(answers: Sequence[Answer], threads: Sequence[threading.Thread]) -> None:
    console = out()
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while left := [thread for thread in threads if thread.is_alive()]:
                # Doubles as the pause between two frames.
                left[0].join(_EVERY_S)
                live.update(_Tail(answers), refresh=True)
    finally:
        console.print(_columns(answers))


@dataclass(frozen=True, slots=True)
class _Tail:
    """The ends of the answers, as far as they fit on the screen: `Live` cannot redraw scrolled lines."""

    answers: Sequence[Answer]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(_columns(self.answers), options, pad=False)
        height = max(2, console.height - _BELOW)
        if len(lines) > height:
            # Aligned at the bottom: a short answer next to a long one must not scroll out of sight.
            lines = console.render_lines(_columns(self.answers, "bottom"), options, pad=False)
            lines = [lines[0], *lines[1 - height :]]
        for number, line in enumerate(lines):
            if number:
                yield Segment.line()
            yield from line


def _columns(answers: Sequence[Answer], vertical: Literal["top", "bottom"] = "top") -> Table:
    grid = Table(box=None, pad_edge=False, header_style="head", padding=(0, 3, 0, 0), expand=True)
    for answer in answers:
        grid.add_column(answer.name, ratio=1, overflow="fold", vertical=vertical)
    grid.add_row(*(_cell(answer) for answer in answers))
    return grid


def _cell(answer: Answer) -> Text:
    text = Text(answer.text)
    if answer.waiting:
        text.append(f"{chr(10) if answer.text else ''}{answer.waiting} Waiting…", style="dim")
    return text
