"""The life of a federation: it waits to be started, runs from round to round, may pause, and ends.

    queued ──▶ running ──▶ completed
      │         │  ▲
      │         ▼  │
      │        paused
      ╰─────────┴──────▶ cancelled

What it does meanwhile is its rounds' affair (`lifecycle.round`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tunefleet.errors import IllegalTransition


class FederationStatus(StrEnum):
    """Where a federation stands. The last two are final."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    """Updates are taken and kept; no round is closed."""
    COMPLETED = "completed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the status never changes again."""
        return self in FINAL


FINAL: Final = frozenset({FederationStatus.COMPLETED, FederationStatus.CANCELLED})

_S = FederationStatus
TRANSITIONS: Final[dict[FederationStatus, frozenset[FederationStatus]]] = {
    _S.QUEUED: frozenset({_S.RUNNING, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.PAUSED, _S.COMPLETED, _S.CANCELLED}),
    _S.PAUSED: frozenset({_S.RUNNING, _S.COMPLETED, _S.CANCELLED}),
    **dict.fromkeys(FINAL, frozenset()),
}


def move(status: FederationStatus, target: FederationStatus) -> FederationStatus:
    """Return a status that may follow another.

    Args:
        status: Where the federation stands.
        target: Where it is to go.

    Raises:
        IllegalTransition: If the table has no such change.
    """
    if target not in TRANSITIONS[status]:
        raise IllegalTransition(f"A federation that is {status.value} cannot become {target.value}.")
    return target
