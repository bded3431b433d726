"""Lifecycle of a model version in the registry.

    candidate ──▶ promoted ◀──▶ archived
        ╰──────────────────────────▲

At most one version of a model is promoted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tunefleet.errors import IllegalTransition


class Stage(StrEnum):
    """Stage of a version."""

    CANDIDATE = "candidate"
    """Created, not evaluated by the gate yet."""
    PROMOTED = "promoted"
    """In use: the next cycle starts from it and is compared with it."""
    ARCHIVED = "archived"
    """Rejected by the gate, or replaced by a better version."""


TRANSITIONS: Final[dict[Stage, frozenset[Stage]]] = {
    Stage.CANDIDATE: frozenset({Stage.PROMOTED, Stage.ARCHIVED}),
    Stage.PROMOTED: frozenset({Stage.ARCHIVED}),
    Stage.ARCHIVED: frozenset({Stage.PROMOTED}),  # by a rollback
}


def move(stage: Stage, target: Stage) -> Stage:
    """Return the target stage if the transition is allowed.

    Args:
        stage: Current stage.
        target: Requested stage.

    Raises:
        IllegalTransition: If the table does not allow it.
    """
    if target not in TRANSITIONS[stage]:
        raise IllegalTransition(f"A version that is {stage.value} cannot become {target.value}.")
    return target
