"""`tunefleet logs`: the log of a task."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from tunefleet.cli.console import Json, err, json_text, plain
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import TaskId, connect, one_task
from tunefleet.client import Client
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.observability.step_line import readable
from tunefleet.placement import LIGHT_KINDS
from tunefleet.schemas.api import TaskDetail

_PIECE_BYTES = 1 << 20
_LINE_GUESS_BYTES = 200
# Beginning of a dictionary that a Trainer prints.
_DICTIONARY = "{'"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@examples("tunefleet logs task-3f9a", "tunefleet logs -f task-3f9a", "tunefleet logs -n 50 task-3f9a")
def logs(
    task: TaskId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Number of lines to show, from the end.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the log unchanged.")] = False,
    as_json: Json = False,
) -> None:
    """Print a run's log.

    On a terminal, each dictionary that a Trainer prints is shown as one readable line; with --raw or in a pipe, the
    log is unchanged. With --json, each chunk is one line: {"text": …}. Ctrl-C stops --follow and leaves the run
    running.
    """
    # Following survives a restart of the server.
    with connect(patience_s=30.0, refused_s=None) if follow else connect() as client:
        task = one_task(client, task)
        try:
            with closing(LogOutput(raw=raw, as_json=as_json)) as output:
                offset = 0
                for text, next_offset in _present(client, task, lines):
                    output.write(text)
                    offset = next_offset
                for text in client.tasks.follow_log(task, offset=offset) if follow else ():
                    output.write(text)
                    offset += len(text)
            _say_why_empty(client, task, offset)
        except KeyboardInterrupt:
            if not follow:
                raise
            err().print(f"\nIt keeps running. Follow it again with `tunefleet logs -f {task}`.")
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _say_why_empty(client: Client, task: str, size: int) -> None:
    """Print on standard error why the log is empty, if it is."""
    if size == 0 and not client.tasks.log(task, limit_bytes=1).size_bytes:
        err().print(no_log(client.tasks.get(task)))


def no_log(task: TaskDetail) -> str:
    """Return the reason why a task's log is empty."""
    if task.started_at is None:
        return f"{task.id} has no log: it {'never ran' if TaskStatus(task.status).final else 'has not started'}."
    if task.kind in LIGHT_KINDS:
        where = f" {task.worker_id}" if task.worker_id else ""
        return f"{task.id} has no log: {task.kind} runs execute inside their worker{where}."
    return f"{task.id} has no log: it printed nothing{'' if TaskStatus(task.status).final else ' yet'}."


def _present(client: Client, task: str, lines: int | None) -> Iterator[tuple[str, int]]:
    if lines is not None:
        yield _tail(client, task, lines)
        return
    offset = 0
    while True:
        piece = client.tasks.log(task, offset=offset, limit_bytes=_PIECE_BYTES)
        yield piece.text, piece.next_offset
        # No progress ends the loop, too.
        if piece.next_offset >= piece.size_bytes or piece.next_offset == offset:
            return
        offset = piece.next_offset


def _tail(client: Client, task: str, lines: int) -> tuple[str, int]:
    # The server counts bytes, not lines: guess, and fetch four times as much while that is not enough.
    tail_bytes = max(1, lines) * _LINE_GUESS_BYTES
    while True:
        piece = client.tasks.log(task, tail_bytes=tail_bytes, limit_bytes=tail_bytes)
        found = piece.text.splitlines(keepends=True)
        if len(found) > lines or piece.offset == 0:
            return "".join(found[-lines:] if lines else ()), piece.next_offset
        tail_bytes *= 4


class LogOutput:
    """Prints a log that arrives in pieces; on a terminal without colours and control characters.

    Args:
        raw: Whether to print the dictionaries of a Trainer as they are.
        as_json: Whether to print one JSON object for each piece.
    """

    def __init__(self, *, raw: bool = False, as_json: bool = False) -> None:
        self._as_json = as_json
        self._terminal = sys.stdout.isatty()
        self._readable = self._terminal and not raw
        self._held = ""

    def write(self, text: str) -> None:
        """Print a piece; the beginning of a dictionary is held back until its line is complete."""
        if self._as_json:
            self._put(json_text({"text": text}) + "\n" if text else "")
            return
        if self._readable:
            *complete, last = (self._held + text).split("\n")
            self._held = last if last.startswith(_DICTIONARY) or last == _DICTIONARY[0] else ""
            text = "\n".join([*map(readable, complete), last.removesuffix(self._held)])
        # A progress bar returns to the beginning of its line.
        self._put(plain(_COLOUR.sub("", text), keep="\r") if self._terminal else text)

    def close(self) -> None:
        """Print what was held back."""
        held, self._held = self._held, ""
        self._put(plain(_COLOUR.sub("", readable(held)), keep="\r"))

    def _put(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
