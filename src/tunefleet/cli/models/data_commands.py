"""`tunefleet data`: datasets and models on the server, used by name in workflow files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from tunefleet import errors
from tunefleet.cli import formatting
from tunefleet.cli.console import Json, facts, out, print_json, say, table
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Artifact, Yes, confirm, connect
from tunefleet.cli.tasks.show import artifact_table
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client.submission import read_document
from tunefleet.errors import AuthError, InputError, MachineError, UnreachableError
from tunefleet.spec import BaseTaskSpec, TrainingTaskSpec, parse_workflow

app = typer.Typer(help="Upload datasets and models to the server.", no_args_is_help=True)
_FILES_SHOWN = 50
_CELL = 2000
_BAR_COLUMNS = 40
_STYLES = {"trained": "bold green", "cut": "strike red"}
_PLAIN_MARKS = {"trained": ("⟦", "⟧"), "cut": ("⟨cut: ", "⟩")}


@examples("tunefleet data push ./train.jsonl", "tunefleet data push ./my-model --name base --kind model")
def push(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A file or a folder.")],
    *,
    name: Annotated[str | None, typer.Option("--name", help="Name in workflow files; default: the file name.")] = None,
    kind: Annotated[str, typer.Option("--kind", help="dataset, model, script or files.")] = "dataset",
    as_json: Json = False,
) -> None:
    """Upload a file or folder; use it in a workflow file as `data: {artifact: NAME}`.

    Files that are already on the server are skipped, and an interrupted upload resumes.
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
        say(f"No {kind} matches." if kind else "No data yet. Upload a file or folder with `tunefleet data push PATH`.")


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
    """Try the steps of a data task on this machine, with the first rows of each source.

    Steps that need all rows (sample, split) are skipped. Needs the data libraries, but no server.
    """
    # Parsed here first: this process can show errors with their lines, as `validate` does.
    parse_workflow(read_document(Path(file))[0], filename=file)
    more = [f"--task={task}"] if task is not None else []
    found = _ask("tunefleet.workloads.data_pipeline.trial", [file, "--rows", str(rows), *more])
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
        say(f"Skipped because they need all rows: {', '.join(found['left_out'])}", style="dim")


for _function, _name in ((push, "push"), (ls, "ls"), (show, "show"), (rm, "rm"), (try_, "try")):
    add(app, _function, _name)


@examples("tunefleet preview sft.yaml", "tunefleet preview sft.yaml --rows 10", "tunefleet preview sft.yaml --json")
def preview(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Workflow file.")],
    *,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, max=100, help="Number of rows.")] = 3,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="Name of the task.")] = None,
    as_json: Json = False,
) -> None:
    """Preview the training data: trained and masked tokens.

    Trained tokens are green, and tokens beyond max_seq_length are struck through; without colors they are marked
    with ⟦ ⟧ and ⟨ ⟩. The distribution of row lengths follows. Needs the training libraries, and a server only to
    download `data: {artifact: NAME}`.
    """
    text, _ = read_document(Path(file))
    # Parsed here first, so that errors are shown with their lines.
    node = parse_workflow(text, filename=file).task(task)
    with _fetched(node.spec) as inputs:
        arguments = [file, "--rows", str(rows), "--json", *inputs, f"--task={node.name}"]
        found = _ask(_program(node.spec), arguments)
    if as_json:
        print_json(found)
        return
    for number, row in enumerate(found["rows"], start=1):
        say(Text(f"Row {number}: {row['tokens']} tokens, {row['trained_tokens']} trained", style="head"))
        say(_row(row["pieces"], plain=out().no_color or not out().is_terminal))
        say()
    say(facts(_facts(found)))
    say()
    say(Text("Tokens per row", style="head"))
    for bar in _histogram(found["histogram"], found["max_seq_length"]):
        say(bar)


def _program(spec: BaseTaskSpec | None) -> str:
    # The code of a tokenizer from the Hub may import torch; all others work without it, in half the time.
    custom = isinstance(spec, TrainingTaskSpec) and spec.model.trust_remote_code
    return "tunefleet.workloads.data.preview" if custom else "tunefleet.workloads.data"


@contextmanager
def _fetched(spec: BaseTaskSpec | None) -> Iterator[list[str]]:
    """Download the spec's artifact into a temporary folder; yields the arguments that name it."""
    if not isinstance(spec, TrainingTaskSpec) or spec.data.source.kind != "artifact":
        yield []
        return
    name = spec.data.source.value
    with tempfile.TemporaryDirectory(prefix="tunefleet-preview-") as folder:
        try:
            with connect() as client, transfer_bar() as on_progress:
                # The name in a workflow file means pushed data, even if a task has a newer output of that name.
                pushed = (made.id for made in client.data.iterate(name=name) if made.task_id is None)
                path = client.data.fetch(next(pushed, name), Path(folder), on_progress=on_progress)
        except (AuthError, UnreachableError) as error:
            raise type(error)(
                f"The data {name!r} is on the server, and the preview must download it. {error.message}",
                hint=f"{error.hint or ''} Or set data.path to a local file for the preview.".strip(),
            ) from error
        yield ["--input", f"{spec.data.source.pointer}={path}"]


def _ask(program: str, arguments: list[str]) -> dict[str, Any]:
    """Run a preview in a subprocess, which imports the training libraries, and return its JSON output."""
    command = [sys.executable, "-m", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        # The last line: libraries may print warnings before it.
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        if "No module named" in done.stderr:
            raise MachineError(
                "The training libraries are not installed.",
                hint=f"Install them: {errors.install_command('train')}",
                detail=done.stderr,
            ) from None
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise MachineError(f"The preview failed: {last[0]}", detail=done.stderr) from None
    if "error" in found:
        raise InputError(found["error"], hint=found.get("hint"))
    return found


def _row(pieces: list[Mapping[str, Any]], *, plain: bool) -> Text:
    shown = Text()
    for piece in pieces:
        state = "cut" if piece["cut"] else "trained" if piece["trained"] else "context"
        if plain:
            before, after = _PLAIN_MARKS.get(state, ("", ""))
            shown.append(f"{before}{piece['text']}{after}")
        else:
            shown.append(piece["text"], style=_STYLES.get(state, "bright_black"))
    return shown


def _facts(found: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType | None]]:
    lengths = found["lengths"]
    yield "model", found["model"]
    yield "data", f"{found['dataset']}: {found['total_rows']:,} rows, {found['held_out_rows']:,} for evaluation"
    yield "shape", f"{found['shape']} ({', '.join(found['columns'])})"
    yield (
        "tokens",
        f"shortest {lengths['shortest']}, median {lengths['median']:.0f}, p95 {lengths['p95']:.0f},"
        f" longest {lengths['longest']}",
    )
    yield "trained", f"{found['trained_share']:.0%} of the tokens"
    cut = found["truncated_share"]
    truncated = Text(
        f"{cut:.1%} of the rows are longer than {found['max_seq_length']} tokens", style="warn" if cut else ""
    )
    yield "truncated", truncated
    if found["nothing_to_learn_share"]:
        yield "empty", Text(f"{found['nothing_to_learn_share']:.1%} of the rows have no trained tokens", style="warn")
    for note in found["notes"]:
        yield "note", Text(note, style="warn")
    if found["measured_rows"] < found["total_rows"]:
        yield "measured", formatting.plural(found["measured_rows"], "row")


def _histogram(histogram: Mapping[str, Any], limit: int) -> Iterator[Text]:
    counts, edges = histogram["counts"], histogram["edges"]
    most = max(counts) or 1
    for count, (low, high) in zip(counts, pairwise(edges), strict=True):
        bar = "█" * round(_BAR_COLUMNS * count / most) or ("▏" if count else "")
        yield Text.assemble(
            (f"{low:>6.0f} – {high:<6.0f} ", "dim"), (bar, "warn" if low > limit else "busy"), (f" {count}", "dim")
        )
