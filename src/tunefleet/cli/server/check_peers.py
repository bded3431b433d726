"""What `tunefleet doctor` says of the chosen server's place among those that share its database. Prints nothing."""

from __future__ import annotations

from typing import Final, NamedTuple

from tunefleet.cli import formatting
from tunefleet.schemas.server_info import PeersView

_MISSED_S: Final = 10.0
"""Who leads and was silent for longer is followed by another in a moment, or cannot reach the database."""


class Place(NamedTuple):
    """How a server stands; `mend` says what to do if nobody leads."""

    told: str
    mend: str | None = None


def place(view: PeersView) -> Place | None:
    """Return how the server that was asked stands; null if it has its database to itself."""
    if not view.shared:
        return None
    leader = next((each for each in view.servers if each.leads and each.silent_s <= _MISSED_S), None)
    count = formatting.plural(len(view.servers), "server")
    if leader is None:
        return Place(f"of {count} none leads", "See `tunefleet servers`, and the logs of those that do not answer.")
    if leader.this:
        return Place(f"of {count} this one leads")
    return Place(f"of {count} this one follows; {leader.id} on {leader.host} leads")
