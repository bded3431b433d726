"""`tunefleet validate`: check a workflow file without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say, show_warnings
from tunefleet.cli.exit_codes import ExitCode, exit_code_of
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import Set, parse_sets
from tunefleet.client.submission import check_local_files, override, read_document
from tunefleet.errors import InputError, SpecError
from tunefleet.schemas.api import FaultView, ValidateReply
from tunefleet.spec.documents.submit_checks import new_faults, remarks


@examples("tunefleet validate sft.yaml", "tunefleet validate sft.yaml --set lora.r=32")
def validate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Workflow file.")],
    *,
    sets: Set = None,
    as_json: Json = False,
) -> None:
    """Check a workflow file; list every error with its line.

    Needs no server. The first 1,000 rows of local data files are checked, too.
    """
    text, path = read_document(Path(file))
    try:
        _, workflow = override(text, parse_sets(sets), filename=file)
        listed = [(task, task.spec) for task in workflow.tasks]
        if found := new_faults(listed):
            raise SpecError(found, filename=file)
    except SpecError as error:
        if not as_json:
            raise
        faults = tuple(FaultView(**{name: getattr(f, name) for name in FaultView.model_fields}) for f in error.faults)
        print_json(ValidateReply(ok=False, faults=faults))
        raise typer.Exit(ExitCode.INVALID) from None
    folder = path.parent if path else Path()
    try:
        files, warnings = check_local_files(workflow, folder), remarks(listed)
    except InputError as error:
        if not as_json:
            raise
        # The path has a field of its own in the reply.
        message = error.message.removeprefix(f"{error.path}: ")
        fault = FaultView(path=error.path, message=message, hint=error.hint)
        print_json(ValidateReply(ok=False, faults=(fault,)))
        raise typer.Exit(exit_code_of(error)) from None
    if as_json:
        names = tuple(task.name for task in workflow.tasks)
        print_json(ValidateReply(ok=True, tasks=names, warnings=tuple(warnings)))
        return
    show_warnings(warnings)
    say(f"Valid: {formatting.plural(len(workflow.tasks), 'task')}.", style="good")
    if files:
        say(f"Uploads: {', '.join(dict.fromkeys(map(str, files)))}", style="dim")
