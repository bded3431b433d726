"""Lifecycle of a sweep and of its trials.

    running ──▶ stopping ──▶ completed, failed or stopped
      ╰────────────────────▶ completed or failed

A sweep that is stopping starts no further trial, and waits until its running trials have ended.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tunefleet.errors import IllegalTransition


class SweepStatus(StrEnum):
    """Status of a sweep. The last three are final."""

    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def final(self) -> bool:
        """Whether the status never changes again."""
        return self in FINAL


class TrialState(StrEnum):
    """State of a trial. The first three are open, the others final."""

    RUNNING = "running"
    """Its run is queued, paused or running."""
    PRUNING = "pruning"
    """The pruner stops its run."""
    STOPPING = "stopping"
    """Its sweep stops its run."""
    COMPLETED = "completed"
    PRUNED = "pruned"
    STOPPED = "stopped"
    FAILED = "failed"
    DIVERGED = "diverged"
    """Its loss was not finite: a result of its values, not a failure of the sweep."""
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the state never changes again."""
        return self not in OPEN


FINAL: Final = frozenset({SweepStatus.COMPLETED, SweepStatus.FAILED, SweepStatus.STOPPED})
OPEN: Final = frozenset({TrialState.RUNNING, TrialState.PRUNING, TrialState.STOPPING})
_S = SweepStatus
TRANSITIONS: Final[dict[SweepStatus, frozenset[SweepStatus]]] = {
    _S.RUNNING: frozenset({_S.STOPPING, _S.COMPLETED, _S.FAILED}),
    _S.STOPPING: FINAL,
    **dict.fromkeys(FINAL, frozenset()),
}


def move(status: SweepStatus, target: SweepStatus) -> SweepStatus:
    """Return the target status if the transition is allowed.

    Raises:
        IllegalTransition: If the table does not allow it.
    """
    if target not in TRANSITIONS[status]:
        raise IllegalTransition(f"A sweep that is {status.value} cannot become {target.value}.")
    return target
