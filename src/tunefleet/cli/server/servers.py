"""`tunefleet servers`: who shares the database, and who leads."""

from __future__ import annotations

from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.session import connect

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
