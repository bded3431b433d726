"""`tunefleet preview`: tokenized rows with trained tokens in color."""

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
from tunefleet.cli.console import Json, facts, out, print_json, say
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import connect
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client.submission import read_document
from tunefleet.errors import AuthError, InputError, MachineError, UnreachableError
from tunefleet.spec import BaseTaskSpec, TrainingTaskSpec, parse_workflow

_BAR_COLUMNS = 40
_STYLES = {"trained": "bold green", "cut": "strike red"}
_PLAIN_MARKS = {"trained": ("⟦", "⟧"), "cut": ("⟨cut: ", "⟩")}


@examples("tunefleet preview sft.yaml", "tunefleet preview sft.yaml --rows 10", "tunefleet preview sft.yaml --json")
def preview(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Workflow file.")],
    *,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, max=100, help="Number of rows.")] = 3,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="Name of the task.")] = None,
    as_json: Json = False,
) -> None:
    """Preview the training data: trained and masked tokens.

    Trained tokens are green, tokens beyond max_seq_length are struck through; then come the lengths of all rows.
    Without colors they are marked with ⟦ ⟧ and ⟨ ⟩. Needs the training libraries; a server only for
    `data: {artifact: NAME}`, which is downloaded from it.
    """
    text, _ = read_document(Path(file))
    # Parsed here first, so that errors are shown with their lines.
    node = parse_workflow(text, filename=file).task(task)
    with _fetched(node.spec) as inputs:
        arguments = [file, "--rows", str(rows), "--json", *inputs, f"--task={node.name}"]
        found = ask(_program(node.spec), arguments)
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


def ask(program: str, arguments: list[str]) -> dict[str, Any]:
    """Run a preview in a subprocess, which imports the training libraries, and return its JSON output.

    Raises:
        InputError: If the data or model cannot be used.
        MachineError: If the libraries are missing, or it fails otherwise.
    """
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
        f"{lengths['shortest']} shortest, {lengths['median']:.0f} median, {lengths['p95']:.0f} at 95%,"
        f" {lengths['longest']} longest",
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
