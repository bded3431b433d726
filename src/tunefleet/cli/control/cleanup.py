"""`tunefleet control cleanup`: remove what dead jobs of this machine left in the endpoint folder, and nothing else."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, err, out, print_json, say
from tunefleet.cli.control.job_lookup import endpoints_dir
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import confirm
from tunefleet.runtime.control.cleanup import Leftover, find_leftovers, remove_leftover


@examples("tunefleet control cleanup", "tunefleet control cleanup --force --json")
def cleanup(
    *,
    force: Annotated[bool, typer.Option("--force", "-f", "--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the files of dead jobs; job folders and checkpoints stay.

    Only of jobs whose process is surely gone: same machine, and another boot, no such process, or one that started at
    another time. Those of other machines that share the home folder are left alone.
    """
    found = find_leftovers(endpoints_dir())
    dead = [item for item in found if item.job_id is not None]
    if dead and not as_json:
        for line in _lines(dead):
            (err() if force else out()).print(line, soft_wrap=True)
    if dead:
        confirm(
            f"Remove the files of {formatting.plural(len(dead), 'dead job')}? (--force does not ask)",
            yes=force,
            option="--force",
        )
    removed = [item for item in found if remove_leftover(item)]
    named = [item.job_id for item in removed if item.job_id is not None]
    kept = [str(item.folder) for item in found if item not in removed]
    if as_json:
        print_json({"removed": named, "empty": len(removed) - len(named), "kept": kept})
        return
    for folder in kept:
        say(f"{folder} is kept: somebody has files of their own there.", style="warn")
    if not found:
        say("No dead jobs.")
    elif named or not dead:
        more = len(removed) - len(named)
        say(f"Removed {formatting.plural(len(named), 'dead job')}" + (f", {more} empty." if more else "."))


def _lines(dead: list[Leftover]) -> list[Text]:
    lines = [Text("Dead jobs:", "head")]
    for item in dead:
        when = "started" if (item.folder / "endpoint.json").exists() else "ended"
        started = datetime.fromtimestamp(item.started_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        lines.append(Text.assemble("  ", (str(item.job_id), "id"), f"  pid {item.pid}, {when} {started}"))
    return lines
