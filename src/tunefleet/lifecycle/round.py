"""Lifecycle of a round: statuses, and the reasons that change them.

    sampling ──▶ collecting ──▶ aggregating ──▶ publishing ──▶ published
                                     │              │
                                     ╰──────────────┴────────▶ failed

Every status that is not final may also become abandoned. A round that is aggregating or publishing is processed by the
holder of its lease; the status records its progress, so that another process can take over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tunefleet.errors import IllegalTransition


class RoundStatus(StrEnum):
    """Status of a round. The last three are final."""

    SAMPLING = "sampling"
    """Participants are not sampled yet: the federation is not started, or paused."""
    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    """Closed: further updates count in the next round."""
    PUBLISHING = "publishing"
    """The adapter is stored, its version is not."""
    PUBLISHED = "published"
    FAILED = "failed"
    ABANDONED = "abandoned"

    @property
    def final(self) -> bool:
        """Whether the status never changes again."""
        return self in FINAL


FINAL: Final = frozenset({RoundStatus.PUBLISHED, RoundStatus.FAILED, RoundStatus.ABANDONED})


class RoundReason(StrEnum):
    """Why a round changes its status. Callers give a reason, never a status."""

    SAMPLED = "sampled"
    ALL_HERE = "all_here"
    """All expected participants have uploaded."""
    DEADLINE = "deadline"
    """The deadline has passed, and enough participants have uploaded."""
    ASKED_FOR = "asked_for"
    """A user requested the aggregation."""
    AGGREGATED = "aggregated"
    VERSION_STORED = "version_stored"
    UPDATE_REFUSED = "update_refused"
    """The updates cannot be aggregated; the error states which, and why."""
    SERVER_FAULT = "server_fault"
    """The server failed repeatedly, up to the retry limit."""
    ROLLED_BACK = "rolled_back"
    FEDERATION_ENDED = "federation_ended"


_S = RoundStatus
OUTCOMES: Final[dict[RoundReason, RoundStatus]] = {
    RoundReason.SAMPLED: _S.COLLECTING,
    RoundReason.ALL_HERE: _S.AGGREGATING,
    RoundReason.DEADLINE: _S.AGGREGATING,
    RoundReason.ASKED_FOR: _S.AGGREGATING,
    RoundReason.AGGREGATED: _S.PUBLISHING,
    RoundReason.VERSION_STORED: _S.PUBLISHED,
    RoundReason.UPDATE_REFUSED: _S.FAILED,
    RoundReason.SERVER_FAULT: _S.FAILED,
    RoundReason.ROLLED_BACK: _S.ABANDONED,
    RoundReason.FEDERATION_ENDED: _S.ABANDONED,
}
TRANSITIONS: Final[dict[RoundStatus, frozenset[RoundStatus]]] = {
    _S.SAMPLING: frozenset({_S.COLLECTING, _S.ABANDONED}),
    _S.COLLECTING: frozenset({_S.AGGREGATING, _S.ABANDONED}),
    _S.AGGREGATING: frozenset({_S.PUBLISHING, _S.FAILED, _S.ABANDONED}),
    _S.PUBLISHING: frozenset({_S.PUBLISHED, _S.FAILED, _S.ABANDONED}),
    **dict.fromkeys(FINAL, frozenset()),
}


def move(status: RoundStatus, reason: RoundReason) -> RoundStatus:
    """Return the status that a reason leads to.

    Args:
        status: Current status.
        reason: Why the status changes.

    Raises:
        IllegalTransition: If the table does not allow it.
    """
    target = OUTCOMES[reason]
    if target not in TRANSITIONS[status]:
        raise IllegalTransition(f"A round that is {status.value} cannot become {target.value} ({reason.value}).")
    return target
