"""Lifecycle of a campaign, its cycles with their steps, and the versions of its models.

A campaign:

    active ◀──▶ paused          held ──▶ active (retry)
      │  ╰─────────────────────▶ ▲
      ╰──▶ stopped ──▶ active    ╰── too many failures in a row, or no budget left

Every campaign can be stopped, and a stopped one can be started again. A cycle:

    running ──▶ completed
       │ ▲
       ▼ │ (retry)
    failed ──▶ abandoned

which runs its steps in a fixed order; each is intended, then done.

At most one version of a model is promoted: candidate ──▶ promoted ◀──▶ archived; a candidate may also be archived
directly.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tunefleet.errors import IllegalTransition


class CampaignStatus(StrEnum):
    """Status of a campaign. None is final: a stopped campaign can be started again."""

    ACTIVE = "active"
    PAUSED = "paused"
    """Paused by a user: no step starts until it is resumed."""
    STOPPED = "stopped"
    """Ended: its open cycle is abandoned; its models are kept."""
    HELD = "held"
    """Circuit breaker: too many consecutive failures, or no budget left; continues after a retry by a user."""


class CycleStatus(StrEnum):
    """Status of a cycle."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    """A dead letter: kept with its reason, can be retried."""
    ABANDONED = "abandoned"


class StepName(StrEnum):
    """The steps of a cycle, in order."""

    DATA = "data"
    UPLOAD = "upload"
    SUBMIT = "submit"
    """The step that incurs costs."""
    WAIT = "wait"
    EVALUATE = "evaluate"
    SELECT = "select"
    MERGE = "merge"
    GATE = "gate"
    PUBLISH = "publish"
    RECORD = "record"
    SLEEP = "sleep"

    @property
    def next(self) -> StepName | None:
        """The next step; `None` after the last."""
        at = STEPS.index(self) + 1
        return STEPS[at] if at < len(STEPS) else None

    @property
    def and_later(self) -> tuple[StepName, ...]:
        """This step and all later ones."""
        return STEPS[STEPS.index(self) :]


class StepStatus(StrEnum):
    """Status of a step."""

    INTENDED = "intended"
    """The intent is stored; the action may have been executed."""
    DONE = "done"
    FAILED = "failed"


STEPS: Final = tuple(StepName)
# Prefix of messages that require a user action; the command to run is the first text in backticks.
NEEDS_YOU: Final = "Action required: "


def needs_you(name: str, verb: str, why: str) -> str:
    """Return the message for a campaign that needs a user action: the command to run, then the reason.

    Args:
        verb: Subcommand of `tunefleet campaign` with options, such as `retry --from upload`; `start` reads the
            campaign's file again, which must be fixed first.
        why: The reason, in complete sentences.
    """
    word, _, options = verb.partition(" ")
    first = "correct the campaign's file, then " if word == "start" else ""
    return f"{NEEDS_YOU}{first}`{f'tunefleet campaign {word} {name} {options}'.rstrip()}`. {why}"


_C = CampaignStatus
CAMPAIGN_TRANSITIONS: Final[dict[CampaignStatus, frozenset[CampaignStatus]]] = {
    _C.ACTIVE: frozenset({_C.PAUSED, _C.STOPPED, _C.HELD}),
    _C.PAUSED: frozenset({_C.ACTIVE, _C.STOPPED}),
    _C.HELD: frozenset({_C.ACTIVE, _C.PAUSED, _C.STOPPED}),
    _C.STOPPED: frozenset({_C.ACTIVE}),
}
_Y = CycleStatus
CYCLE_TRANSITIONS: Final[dict[CycleStatus, frozenset[CycleStatus]]] = {
    _Y.RUNNING: frozenset({_Y.COMPLETED, _Y.FAILED, _Y.ABANDONED}),
    _Y.COMPLETED: frozenset({_Y.RUNNING}),  # to merge its model again
    _Y.FAILED: frozenset({_Y.RUNNING, _Y.ABANDONED}),
    _Y.ABANDONED: frozenset({_Y.RUNNING}),
}


def move_campaign(status: CampaignStatus, target: CampaignStatus) -> CampaignStatus:
    """Return the target status if the transition is allowed.

    Args:
        status: Current status.
        target: Requested status.

    Raises:
        IllegalTransition: If the table does not allow it.
    """
    if target not in CAMPAIGN_TRANSITIONS[status]:
        raise IllegalTransition(f"A campaign that is {status.value} cannot become {target.value}.")
    return target


def move_cycle(status: CycleStatus, target: CycleStatus) -> CycleStatus:
    """Return the target status if the transition is allowed.

    Args:
        status: Current status.
        target: Requested status.

    Raises:
        IllegalTransition: If the table does not allow it.
    """
    if target not in CYCLE_TRANSITIONS[status]:
        raise IllegalTransition(f"A cycle that is {status.value} cannot become {target.value}.")
    return target


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


def move_version(stage: Stage, target: Stage) -> Stage:
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
