"""`tunefleet prune`: make room on the server."""

from __future__ import annotations

from typing import Annotated

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import Yes, confirm, parse_duration
from tunefleet.cli.session import connect
from tunefleet.schemas.api import PruneReply


@examples("tunefleet prune --dry-run", "tunefleet prune --older-than 7d --yes")
def prune(
    *,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Since their end: 12h, 7d, 4w.")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove what ended long ago.

    Workflows whose tasks are all final go with metrics, logs and artifacts; then files that nothing refers to.
    """
    age_s = parse_duration(older_than)
    with connect(patience_s=10.0) as client:
        reply = client.prune(age_s, dry_run=True)
        if not dry_run:
            confirm(f"Remove {_amount(reply)} that ended more than {older_than} ago?", yes=yes)
            reply = client.prune(age_s)
    if as_json:
        print_json(reply)
    else:
        say(f"{'Would remove' if dry_run else 'Removed'} {_amount(reply)}.")


def _amount(reply: PruneReply) -> str:
    return (
        f"{formatting.plural(len(reply.workflows), 'workflow')}, {formatting.plural(len(reply.artifacts), 'artifact')}"
        f" ({formatting.size(reply.freed_bytes)})"
    )
