"""`tunefleet validate`: check a document without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefleet.cli import words
from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.exitcodes import ExitCode
from tunefleet.cli.lazy import examples
from tunefleet.cli.options import Set, parse_sets
from tunefleet.client.submitting import local_file, override, read_document
from tunefleet.errors import SpecError
from tunefleet.spec import local_paths
from tunefleet.spec.at_submit import new_faults
from tunefleet.wire.api import FaultView, ValidateReply


@examples("tunefleet validate sft.yaml", "tunefleet validate sft.yaml --set lora.r=32")
def validate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The document.")],
    *,
    sets: Set = None,
    as_json: Json = False,
) -> None:
    """Check a workflow document; list every fault with its line.

    It needs no server. Local files that the document names are looked for too.
    """
    text, path = read_document(Path(file))
    try:
        _, workflow = override(text, parse_sets(sets), filename=file)
        if found := new_faults((task, task.spec) for task in workflow.tasks):
            raise SpecError(found, filename=file)
    except SpecError as error:
        if not as_json:
            raise
        faults = tuple(FaultView(**{name: getattr(f, name) for name in FaultView.model_fields}) for f in error.faults)
        print_json(ValidateReply(ok=False, faults=faults))
        raise typer.Exit(ExitCode.INVALID) from None
    folder = path.parent if path else Path()
    files = [local_file(named, folder) for task in workflow.tasks for named in local_paths(task.raw)]
    if as_json:
        print_json(ValidateReply(ok=True, tasks=tuple(task.name for task in workflow.tasks)))
        return
    travel = [str(found) for found in files if found is not None]
    say(f"{file} is good: {words.plural(len(workflow.tasks), 'task')}.", style="good")
    if travel:
        say(f"These travel with it: {', '.join(travel)}", style="dim")
