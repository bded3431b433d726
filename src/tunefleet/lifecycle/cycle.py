"""The life of a campaign, of each of its cycles, and of the steps of a cycle.

A campaign:

    active ◀──▶ paused          held ──▶ active (retry)
      │  ╰─────────────────────▶ ▲
      ╰──▶ stopped ──▶ active    ╰── too many failures in a row, or no budget left

Every campaign may be stopped; one that is stopped may be started again. A cycle:

    running ──▶ completed
       │ ▲
       ▼ │ (retry)
    failed ──▶ abandoned

and it runs through its steps in one order, each of which is intended, then done.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tunefleet.errors import IllegalTransition


class CampaignStatus(StrEnum):
    """Where a campaign stands. None is final: a stopped campaign may be started again."""

    ACTIVE = "active"
    PAUSED = "paused"
    """Somebody asked: no step is begun until it is resumed."""
    STOPPED = "stopped"
    """Ended: its open cycle is abandoned, and what it has learnt stays."""
    HELD = "held"
    """The circuit breaker: too many failures in a row, or no budget left. It goes on when somebody retries it."""


class CycleStatus(StrEnum):
    """Where a cycle stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    """A dead letter: it is kept with its reason, and may be retried."""
    ABANDONED = "abandoned"


class StepName(StrEnum):
    """The steps of a cycle, in their order."""

    DATA = "data"
    UPLOAD = "upload"
    SUBMIT = "submit"
    """The one that is paid for."""
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
        """The step that follows; null after the last."""
        at = STEPS.index(self) + 1
        return STEPS[at] if at < len(STEPS) else None

    @property
    def and_later(self) -> tuple[StepName, ...]:
        """The step and those that follow it."""
        return STEPS[STEPS.index(self) :]


class StepStatus(StrEnum):
    """How far a step has come."""

    INTENDED = "intended"
    """What it is to do is stored; it may have acted."""
    DONE = "done"
    FAILED = "failed"


STEPS: Final = tuple(StepName)
NEEDS_YOU: Final = "Needs you: "
"""How a text begins that says what a person has to type; the command is the first thing in backticks."""


def needs_you(name: str, verb: str, why: str) -> str:
    """Return the text for a campaign that goes on only when a person acts: the command to type, then the reason.

    Args:
        verb: Of `tunefleet campaign`, with its options, such as `retry --from upload`; `start` reads the campaign's
            file again, which is corrected first.
        why: The reason, in sentences.
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
    _Y.COMPLETED: frozenset({_Y.RUNNING}),  # its model is merged once more
    _Y.FAILED: frozenset({_Y.RUNNING, _Y.ABANDONED}),
    _Y.ABANDONED: frozenset({_Y.RUNNING}),
}


def move_campaign(status: CampaignStatus, target: CampaignStatus) -> CampaignStatus:
    """Return a status that may follow another.

    Args:
        status: Where the campaign stands.
        target: Where it is to go.

    Raises:
        IllegalTransition: If the table has no such change.
    """
    if target not in CAMPAIGN_TRANSITIONS[status]:
        raise IllegalTransition(f"A campaign that is {status.value} cannot become {target.value}.")
    return target


def move_cycle(status: CycleStatus, target: CycleStatus) -> CycleStatus:
    """Return a status that may follow another.

    Args:
        status: Where the cycle stands.
        target: Where it is to go.

    Raises:
        IllegalTransition: If the table has no such change.
    """
    if target not in CYCLE_TRANSITIONS[status]:
        raise IllegalTransition(f"A cycle that is {status.value} cannot become {target.value}.")
    return target
