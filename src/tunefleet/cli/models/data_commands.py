"""`tunefleet data`: datasets and models on the server, used by name in workflow files."""

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

app = typer.Typer(help="Upload datasets and models to the server.", no_args_is_help=True)
_FILES_SHOWN = 50
_CELL = 2000


@examples("tunefleet data push ./train.jsonl", "tunefleet data push ./my-model --name base --kind model")
def push(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A file or a folder.")],
    *,
    name: Annotated[str | None, typer.Option("--name", help="Name in workflow files; default: the file name.")] = None,
    kind: Annotated[str, typer.Option("--kind", help="dataset, model, script or files.")] = "dataset",
    as_json: Json = False,
) -> None:
    """Upload a file or folder; use it in a workflow file as `data: {artifact: NAME}`.

    Files that the server already has are skipped; an interrupted upload resumes.
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
        say(f"Use it in a workflow file:  data: {{artifact: {pushed.name}}}", style="dim")


@examples("tunefleet data ls", "tunefleet data ls --kind model")
def ls(
    *, kind: Annotated[str | None, typer.Option("--kind", help="Filter by kind.")] = None, as_json: Json = False
) -> None:
    """List pushed data, newest first."""
    with connect() as client:
        # Outputs of tasks are artifacts too; they have a task id.
        found = tuple(made for made in client.data.iterate(kind=kind) if made.task_id is None)
    if as_json:
        print_json(found)
    elif found:
        say(artifact_table(found))
    else:
        say(f"No {kind} matches." if kind else "No data yet. Upload some with `tunefleet data push PATH`.")


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
        say(f"{len(detail.files) - _FILES_SHOWN} more files; --json lists all.", style="dim")


@examples("tunefleet data rm train.jsonl")
def rm(artifact: Artifact, *, yes: Yes = False, as_json: Json = False) -> None:
    """Remove an artifact; runs that use it keep their copy."""
    with connect() as client:
        detail = client.data.get(artifact)
        confirm(f"Remove {detail.name} ({detail.id}, {formatting.size(detail.size_bytes)})?", yes=yes)
        client.data.remove(detail.id)
    if as_json:
        print_json({"removed": [detail.id]})
    else:
        say(f"Removed {detail.name}.")


@examples("tunefleet data try prepare.yaml", "tunefleet data try prepare.yaml --rows 10 --task maths")
def try_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Workflow file.")],
    *,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, max=100, help="Number of rows.")] = 5,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="Name of the task.")] = None,
    as_json: Json = False,
) -> None:
    """Run the steps of a data task on the first rows of each source, on this machine.

    Steps that need all rows (sample, split) are skipped. Needs the libraries that read data, but no server.
    """
    # Parsed here first: this process can show errors with their lines, as `validate` does.
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
        say(f"Skipped, need all rows: {', '.join(found['left_out'])}", style="dim")


for _function, _name in ((push, "push"), (ls, "ls"), (show, "show"), (rm, "rm"), (try_, "try")):
    add(app, _function, _name)
