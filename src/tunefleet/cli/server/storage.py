"""`tunefleet storage`: how much room the server's data takes."""

from __future__ import annotations

from typing import Final

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.session import connect
from tunefleet.schemas.server_info import Kept

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
