"""Bodies of the sweep routes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from tunefleet.lifecycle.sweep import SweepStatus, TrialState
from tunefleet.schemas.base import Body, Message


class SweepCreate(Body):
    """A workflow file with `sweep`, and the artifacts for its local paths.

    Args:
        document: The YAML or JSON text, unchanged.
        inputs: Task name → pointer into the spec (such as `data.path`) → digest of an uploaded artifact.
    """

    document: str
    filename: str | None = None
    inputs: dict[str, dict[str, str]] = Field(default_factory=dict)


class TrialView(Message):
    """A trial of a sweep.

    Args:
        task_id: Its run; null if its values were not valid together, or the run was removed.
        parameters: Path below `spec` → value.
        value: The objective: the last one measured.
        steps: Training steps.
        evaluations: Number of evaluations so far.
        run_status: Status of its run, while it is open.
        error: Why it failed.
    """

    number: int
    state: TrialState
    task_id: str | None = None
    parameters: dict[str, Any]
    value: float | None = None
    steps: int | None = None
    evaluations: int = 0
    run_status: str | None = None
    gpu_hours: float = 0.0
    error: str | None = None
    created_at: datetime
    finished_at: datetime | None = None


class SweepView(Message):
    """A sweep in lists.

    Args:
        reason: Why it ended, or what it waits for.
        trials: Number of trials of the complete sweep.
        states: Number of trials so far, by state.
        best: The complete trial with the best value.
        steps: Training steps of all trials.
    """

    id: str
    name: str
    owner: str
    status: SweepStatus
    reason: str | None = None
    sampler: str
    pruner: str | None = None
    metric: str
    direction: Literal["minimize", "maximize"]
    trials: int
    parallel: int
    states: dict[TrialState, int]
    best: TrialView | None = None
    steps: int = 0
    gpu_hours: float = 0.0
    created_at: datetime
    finished_at: datetime | None = None


class SweepDetail(SweepView):
    """A sweep with its trials.

    Args:
        trial_list: Leaderboard: complete trials first, the best one at the top.
        document: The workflow file of the trials, without `sweep`.
        spec: The block `sweep`, with defaults.
    """

    trial_list: tuple[TrialView, ...]
    document: str
    spec: dict[str, Any]


class ImportanceView(Message):
    """How much each parameter matters for the objective.

    Args:
        shares: Path of the parameter → its share of 1, the largest first; empty with fewer than four complete trials.
    """

    shares: dict[str, float]
