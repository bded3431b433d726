"""`tunefleet prune`, `servers` and `storage`: maintenance of the server."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import Yes, confirm, connect, parse_duration
from tunefleet.schemas.api import PruneReply
from tunefleet.schemas.server_info import Kept

# A server that is silent for longer probably does not respond.
_MISSED_S = 10.0
_WHAT: Final[dict[Kept, str]] = {
    "results": "outputs of tasks",
    "checkpoints": "checkpoints of tasks",
    "federations": "versions, updates and chunks of federations",
    "data": "pushed datasets and models",
    "arriving": "uploads in progress",
    "unused": "unreferenced files",
    "database": "tables, metrics and logs",
    "working": "working files of the server",
}


@examples("tunefleet prune --dry-run", "tunefleet prune --older-than 7d --yes")
def prune(
    *,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Time since the workflow ended: 12h, 7d, 4w.")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove old workflows with their data.

    Removes workflows whose tasks have all ended, with metrics, logs and artifacts; then unreferenced files.
    """
    age_s = parse_duration(older_than)
    with connect(patience_s=10.0) as client:
        # The dry run gives the amount for the confirmation.
        reply = client.prune(age_s, dry_run=True)
        if not dry_run:
            confirm(f"Remove {_amount(reply)} older than {older_than}?", yes=yes)
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


@examples("tunefleet servers", "tunefleet servers --json")
def servers(*, as_json: Json = False) -> None:
    """List the servers that share a database.

    A server on SQLite is always the only one.
    """
    with connect() as client:
        view = client.servers()
    if as_json:
        print_json(view)
        return
    if not view.shared:
        say("This is the only server on its database.")
        return
    listing = table("server", "host", "url", "version", "role", right=())
    for each in view.servers:
        state = (
            f"no heartbeat for {each.silent_s:.0f} s" if each.silent_s > _MISSED_S else "leader" if each.leads else ""
        )
        state += " (this server)" if each.this else ""
        listing.add_row(each.id, each.host, each.url or "-", each.version, state.strip())
    say(listing)


@examples("tunefleet storage", "tunefleet storage --json")
def storage(*, as_json: Json = False) -> None:
    """Show the disk usage of the server.

    `tunefleet prune` frees space.
    """
    with connect() as client:
        view = client.storage()
    if as_json:
        print_json(view)
        return
    listing = table("category", "files", "size", "content", right=("files", "size"))
    for use in view.uses:
        listing.add_row(use.kind, str(use.files), formatting.size(use.size_bytes), _WHAT[use.kind])
    say(listing)
    say(
        f"Total: {formatting.size(view.total_bytes)}. Disk: {formatting.size(view.disk_free_bytes)} free of"
        f" {formatting.size(view.disk_total_bytes)}."
    )
