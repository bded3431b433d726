"""Data that the engine and the repository exchange about a cycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tunefleet.errors import ConflictError, InputError
from tunefleet.lifecycle.cycle import Stage, StepName
from tunefleet.spec.documents.campaign_document import CampaignBudgetSpec, CampaignSpec

# Spending on a provider's task; one row per task.
TASK: Final = "task"
# Spending on the duration of a task.
SECONDS: Final = "seconds"
# Spending on the duration of a merge on RunPod.
MERGE: Final = "merge"
DAY_S: Final = 86_400.0


class LeaseLost(ConflictError):
    """The campaign has another holder now, or was stopped: the former holder must discard its work."""


class Unreadable(InputError):
    """The stored spec of a campaign is not valid in this version."""


class BudgetError(ConflictError):
    """The next paid call would exceed the budget.

    Args:
        until: Unix time when the call is allowed again; None if a user has to act.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, until: float | None = None, verb: str = "start"
    ) -> None:
        super().__init__(message, hint=hint)
        self.until = until
        self.verb = verb


@dataclass(frozen=True, slots=True)
class Budget:
    """A campaign's spending so far.

    Args:
        tasks_at: Unix times when the tasks of the last 24 hours were paid for, oldest first.
    """

    spent: float
    tasks_at: tuple[float, ...]
    failures: int

    def check(self, spec: CampaignSpec) -> None:
        """Raise if the budget does not allow another task; called before each paid call.

        Raises:
            BudgetError: If a limit is reached.
        """
        limits = spec.budget
        self._check_failures(limits)
        # The cost of time is known only afterwards, so the budget must cover the longest possible duration.
        self._check_cost(limits, "a task", limits.cost_per_task, limits.cost_per_second * spec.hours_to_complete * 3600)
        if limits.max_tasks_per_day is not None and len(self.tasks_at) >= limits.max_tasks_per_day:
            # A task is allowed once the oldest of the newest `max_tasks_per_day` is a day old.
            until = self.tasks_at[-limits.max_tasks_per_day] + DAY_S
            raise BudgetError(
                f"{len(self.tasks_at)} tasks were paid for within 24 hours; max_tasks_per_day is "
                f"{limits.max_tasks_per_day}.",
                hint="It continues automatically; raise max_tasks_per_day to continue earlier.",
                until=until,
            )

    def check_merge(self, spec: CampaignSpec, seconds: float) -> None:
        """Raise if the budget does not allow a merge on RunPod; called before each job is submitted.

        Raises:
            BudgetError: If a limit is reached.
        """
        limits = spec.budget
        self._check_failures(limits)
        if limits.cost_per_merge_second:
            self._check_cost(limits, "a merge", 0.0, limits.cost_per_merge_second * seconds)

    def _check_failures(self, limits: CampaignBudgetSpec) -> None:
        if self.failures >= limits.max_failures:
            raise BudgetError(
                f"{self.failures} cycles in a row have failed; max_failures is {limits.max_failures}.",
                hint="Fix the cause first.",
                verb="retry",
            )

    def _check_cost(self, limits: CampaignBudgetSpec, what: str, price: float, time: float) -> None:
        if limits.max_cost is None:
            return
        if self.spent + price + time > limits.max_cost or self.spent >= limits.max_cost:
            longest = f" plus up to {time:g} for its duration" if time else ""
            raise BudgetError(
                f"{self.spent:g} was spent, {what} costs {price:g}{longest}, and max_cost is {limits.max_cost:g}.",
                hint="Raise max_cost.",
            )


@dataclass(frozen=True, slots=True)
class CycleState:
    """A cycle as seen by the campaign's holder.

    Args:
        position: Index of the chunk that it trains on, counted from 0 over all epochs. A cycle that ended without a
            model leaves its position to the next one, so that no chunk is skipped and none is paid for twice.
        intent: What the step is about to do; None if it has not started.
        kept: State of an external job that the step has kept; None if it has none.
        provider: Provider where its task was, or may have been, ordered; None before that.
    """

    campaign_id: str
    name: str
    owner: str
    project: str
    spec: CampaignSpec
    number: int
    position: int
    outcomes: Mapping[StepName, Mapping[str, Any]]
    step: StepName
    intent: Mapping[str, Any] | None
    tries: int
    not_before: float
    holder: str
    retried: int = 0
    orders: int = 0
    kept: Mapping[str, Any] | None = None
    provider: str | None = None

    @property
    def order_key(self) -> str:
        """Idempotency key of the provider's task: stable until the order is given up."""
        return f"{self.campaign_id}/{self.number}" + (f".{self.orders}" if self.orders else "")

    def key(self, step: StepName, what: str | None = None) -> str:
        """Return the idempotency key of a step's request to the server."""
        cycle = f"{self.number}.{self.retried}" if self.retried else str(self.number)
        return "/".join(part for part in (self.campaign_id, cycle, step.value, what) if part)


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A model made by a cycle."""

    stage: Stage
    form: str
    location: Mapping[str, Any]
    lineage: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a model in the registry; see `NewVersion`.

    Args:
        promoted_at: Unix time of its last promotion; None if it was never promoted.
    """

    name: str
    version: int
    stage: Stage
    form: str
    campaign_id: str
    cycle: int
    location: Mapping[str, Any]
    lineage: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    reason: str | None
    created_at: float
    promoted_at: float | None
