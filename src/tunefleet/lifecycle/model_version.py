"""The life of a version of a model in the registry.

    candidate ──▶ promoted ◀──▶ archived
        ╰──────────────────────────▲

Of the versions of one model at most one is promoted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tunefleet.errors import IllegalTransition


class Stage(StrEnum):
    """Where a version stands."""

    CANDIDATE = "candidate"
    """Made, and not decided on."""
    PROMOTED = "promoted"
    """The one in use: what the next cycle starts from and is compared with."""
    ARCHIVED = "archived"
    """Refused by the gate, or succeeded by a better one."""


TRANSITIONS: Final[dict[Stage, frozenset[Stage]]] = {
    Stage.CANDIDATE: frozenset({Stage.PROMOTED, Stage.ARCHIVED}),
    Stage.PROMOTED: frozenset({Stage.ARCHIVED}),
    Stage.ARCHIVED: frozenset({Stage.PROMOTED}),
}


def move(stage: Stage, target: Stage) -> Stage:
    """Return a stage that may follow another.

    Args:
        stage: Where the version stands.
        target: Where it is to go.

    Raises:
        IllegalTransition: If the table has no such change.
    """
    if target not in TRANSITIONS[stage]:
        raise IllegalTransition(f"A version that is {stage.value} cannot become {target.value}.")
    return target
