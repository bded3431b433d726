"""Lifecycle of a federation: it is started, runs round by round, can be paused, and ends.

    queued ──▶ running ──▶ completed
      │         │  ▲
      │         ▼  │
      │        paused
      ╰─────────┴──────▶ cancelled

The work within a round is described in `lifecycle.round`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tunefleet.errors import IllegalTransition


class FederationStatus(StrEnum):
    """Status of a federation. The last two are final."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    """Updates are accepted and stored; no round is closed."""
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
    """Return the target status if the transition is allowed.

    Args:
        status: Current status.
        target: Requested status.

    Raises:
        IllegalTransition: If the table does not allow it.
    """
    if target not in TRANSITIONS[status]:
        raise IllegalTransition(f"A federation that is {status.value} cannot become {target.value}.")
    return target
