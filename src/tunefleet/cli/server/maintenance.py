"""`tunefleet prune`: make room on the server."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import Yes, confirm, connect, parse_duration
from tunefleet.schemas.api import PruneReply
from tunefleet.schemas.server_info import Kept


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


_MISSED_S = 10.0


@examples("tunefleet servers", "tunefleet servers --json")
def servers(*, as_json: Json = False) -> None:
    """List the servers that share one database.

    One on SQLite is alone.
    """
    with connect() as client:
        view = client.servers()
    if as_json:
        print_json(view)
        return
    if not view.shared:
        say("This server has its database to itself.")
        return
    listing = table("server", "host", "url", "version", "", right=())
    for each in view.servers:
        state = f"silent for {each.silent_s:.0f} s" if each.silent_s > _MISSED_S else "leads" if each.leads else ""
        listing.add_row(each.id, each.host, each.url or "-", each.version, state + (" (asked)" if each.this else ""))
    say(listing)


_WHAT: Final[dict[Kept, str]] = {
    "results": "what tasks have made",
    "checkpoints": "checkpoints of tasks",
    "federations": "versions, updates and chunks of federations",
    "data": "data and models that were pushed",
    "arriving": "uploads on their way",
    "unused": "files that nothing refers to",
    "database": "tables, metrics and logs",
    "working": "what the server works with",
}


@examples("tunefleet storage", "tunefleet storage --json")
def storage(*, as_json: Json = False) -> None:
    """Show how much room the server's data takes.

    `tunefleet prune` makes some.
    """
    with connect() as client:
        view = client.storage()
    if as_json:
        print_json(view)
        return
    listing = table("what", "files", "size", "", right=("files", "size"))
    for use in view.uses:
        listing.add_row(use.kind, str(use.files), formatting.size(use.size_bytes), _WHAT[use.kind])
    say(listing)
    say(
        f"{formatting.size(view.total_bytes)} in all; {formatting.size(view.disk_free_bytes)} of"
        f" {formatting.size(view.disk_total_bytes)} on the disk are free."
    )
