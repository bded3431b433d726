"""`tunefleet data try`: what the steps of a `data` task make of the first rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.models.preview import ask
from tunefleet.client.submission import read_document
from tunefleet.spec import parse_workflow

_CELL = 2000


@examples("tunefleet data try prepare.yaml", "tunefleet data try prepare.yaml --rows 10 --task maths")
def try_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The document.")],
    *,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, max=100, help="Rows to show.")] = 5,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="Task to try.")] = None,
    as_json: Json = False,
) -> None:
    """Put the first rows of each source through the steps of a data task, here.

    Steps that draw a share of all rows (sample, split) are left out. It needs the libraries that read data, and no
    server.
    """
    # Its faults are shown with their lines, as by `validate`; the other process could only name them.
    parse_workflow(read_document(Path(file))[0], filename=file)
    more = [f"--task={task}"] if task is not None else []
    found = ask("tunefleet.workloads.data_pipeline.trial", [file, "--rows", str(rows), *more])
    if as_json:
        print_json(found)
        return
    for sentence in found["recognised"]:
        say(sentence, style="dim")
    for number, row in enumerate(found["rows"], start=1):
        say(Text(f"Row {number}", style="head"))
        say(Text(json.dumps(row, indent=2, ensure_ascii=False)[:_CELL]))
    say()
    counts = table("step", "rows in", "rows out", "bad")
    for count in found["steps"]:
        name = count["step"] if not count.get("source") else f"{count['step']} {count['source']}"
        counts.add_row(name, f"{count['rows_in']:,}", f"{count['rows_out']:,}", f"{count['bad']:,}")
    say(counts)
    if found["left_out"]:
        say(f"Left out, since they need all rows: {', '.join(found['left_out'])}.", style="dim")
