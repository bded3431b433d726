"""`tunefleet logs`: the log of a task."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from tunefleet.cli.console import Json, err, json_text, plain
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.id_lookup import one_task
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import TaskId, connect
from tunefleet.client import Client
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.placement import LIGHT_KINDS
from tunefleet.schemas.api import TaskDetail

_PIECE_BYTES = 1 << 20
_LINE_GUESS_BYTES = 200
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@examples("tunefleet logs task-3f9a", "tunefleet logs -f task-3f9a", "tunefleet logs -n 50 task-3f9a")
def logs(
    task: TaskId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the task ends.")] = False,
    lines: Annotated[int | None, typer.Option("--lines", "-n", min=0, help="Number of lines from the end.")] = None,
    as_json: Json = False,
) -> None:
    """Print a task's log.

    With --json each chunk is one line: {"text": …}. Ctrl-C ends --follow and leaves the task running.
    """
    # Following survives a restart of the server.
    with connect(patience_s=30.0, refused_s=None) if follow else connect() as client:
        task = one_task(client, task)
        offset = 0
        for text, next_offset in _present(client, task, lines):
            _write(text, as_json=as_json)
            offset = next_offset
        if not follow:
            _say_why_empty(client, task, offset)
            return
        try:
            for text in client.tasks.follow_log(task, offset=offset):
                _write(text, as_json=as_json)
                offset += len(text)
            _say_why_empty(client, task, offset)
        except KeyboardInterrupt:
            err().print(f"\nThe task keeps running. Follow it again with `tunefleet logs -f {task}`.")
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
        return f"{task.id} has no log: {task.kind} tasks run inside their worker{where}."
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


def _write(text: str, *, as_json: bool) -> None:
    if text:
        sys.stdout.write(json_text({"text": text}) + "\n" if as_json else _shown(text))
        sys.stdout.flush()


def _shown(text: str) -> str:
    """Return a log for standard output: on a terminal without colours and with escaped control characters."""
    # A progress bar returns to the beginning of its line.
    return plain(_COLOUR.sub("", text), keep="\r") if sys.stdout.isatty() else text
