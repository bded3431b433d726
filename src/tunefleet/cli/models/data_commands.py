"""`tunefleet data`: datasets and models that users push to the server, to be named in documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, facts, print_json, say, table
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.models.preview import ask
from tunefleet.cli.options import Artifact, Yes, confirm, connect
from tunefleet.cli.tasks.show import artifact_table
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client.submission import read_document
from tunefleet.spec import parse_workflow

app = typer.Typer(help="Push datasets and models to the server by name.", no_args_is_help=True)
_FILES_SHOWN = 50


@examples("tunefleet data push ./train.jsonl", "tunefleet data push ./my-model --name base --kind model")
def push(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A file or a folder.")],
    *,
    name: Annotated[str | None, typer.Option("--name", help="How documents name it; default: its file name.")] = None,
    kind: Annotated[str, typer.Option("--kind", help="What it is: dataset, model, script, files.")] = "dataset",
    as_json: Json = False,
) -> None:
    """Upload a file or folder; a document names it as `data: {artifact: NAME}`.

    Files that the server has already are not sent again; a broken upload goes on where it stopped.
    """
    with connect(patience_s=10.0, refused_s=None) as client, transfer_bar() as on_progress:
        pushed = client.data.push(path, name=name, kind=kind, on_progress=on_progress)
    if as_json:
        print_json(pushed)
        return
    files = formatting.plural(pushed.file_count, "file")
    say(
        Text.assemble(
            "Pushed ", (pushed.name, "head"), f": {files}, {formatting.size(pushed.size_bytes)}, ", (pushed.id, "id")
        )
    )
    if pushed.kind == "dataset":
        say(f"Use it in a document:  data: {{artifact: {pushed.name}}}", style="dim")


@examples("tunefleet data ls", "tunefleet data ls --kind model")
def ls(
    *, kind: Annotated[str | None, typer.Option("--kind", help="Only this kind.")] = None, as_json: Json = False
) -> None:
    """List what was pushed, newest first."""
    with connect() as client:
        found = tuple(made for made in client.data.iterate(kind=kind) if made.task_id is None)
    if as_json:
        print_json(found)
    elif found:
        say(artifact_table(found))
    else:
        say(f"Nothing was pushed as {kind}." if kind else "Nothing was pushed yet. `tunefleet data push PATH` does it.")


@examples("tunefleet data show train.jsonl")
def show(artifact: Artifact, *, as_json: Json = False) -> None:
    """Show an artifact and its files."""
    with connect() as client:
        detail = client.data.get(artifact)
    if as_json:
        print_json(detail)
        return
    say(Text.assemble((detail.name, "head"), "  ", (detail.id, "id"), f"  {detail.kind}"))
    say(
        facts(
            [
                ("digest", detail.digest),
                ("size", f"{formatting.size(detail.size_bytes)} in {formatting.plural(detail.file_count, 'file')}"),
                ("owner", detail.owner),
                ("pushed", f"{formatting.age(detail.created_at)} ago"),
                ("task", detail.task_id),
            ]
        )
    )
    say()
    listing = table("file", "size", "sha256", right=("size",))
    for entry in detail.files[:_FILES_SHOWN]:
        listing.add_row(entry.path, formatting.size(entry.size_bytes), entry.digest[:12])
    say(listing)
    if len(detail.files) > _FILES_SHOWN:
        say(f"and {len(detail.files) - _FILES_SHOWN} more; --json lists all.", style="dim")


@examples("tunefleet data rm train.jsonl")
def rm(artifact: Artifact, *, yes: Yes = False, as_json: Json = False) -> None:
    """Remove an artifact; tasks that use it keep what they have."""
    with connect() as client:
        detail = client.data.get(artifact)
        confirm(f"Remove {detail.name} ({detail.id}, {formatting.size(detail.size_bytes)})?", yes=yes)
        client.data.remove(detail.id)
    if as_json:
        print_json({"removed": [detail.id]})
    else:
        say(f"Removed {detail.name}.")


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


for _function, _name in ((push, "push"), (ls, "ls"), (show, "show"), (rm, "rm"), (try_, "try")):
    add(app, _function, _name)
