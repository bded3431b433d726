"""What the engine and the book say to each other about a cycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tunefleet.errors import ConflictError, InputError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.lifecycle.model_version import Stage
from tunefleet.spec.documents.campaign_document import CampaignBudgetSpec, CampaignSpec

# What is spent on a task at the provider; one row of it a task.
TASK: Final = "task"
# What is spent on the time that a task took.
SECONDS: Final = "seconds"
# What is spent on the time of a merge on RunPod.
MERGE: Final = "merge"
DAY_S: Final = 86_400.0


class LeaseLost(ConflictError):
    """Somebody else works on the campaign now, or it was stopped: whoever worked on it drops what they have."""


class Unreadable(InputError):
    """What is stored of a campaign's file is refused by this version."""


class BudgetError(ConflictError):
    """The next paid call would go over the budget.

    Args:
        until: When the call may be made after all, in Unix time; null if only a person can say so.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, until: float | None = None, verb: str = "start"
    ) -> None:
        super().__init__(message, hint=hint)
        self.until = until
        self.verb = verb


@dataclass(frozen=True, slots=True)
class Budget:
    """Where a campaign stands with what it may spend.

    Args:
        tasks_at: When each task of the last 24 hours was paid for, oldest first, in Unix time.
    """

    spent: float
    tasks_at: tuple[float, ...]
    failures: int

    def check(self, spec: CampaignSpec) -> None:
        """Refuse a further task that the budget has no room for; asked before each paid call.

        Raises:
            BudgetError: If a limit is reached.
        """
        limits = spec.budget
        self._check_failures(limits)
        # What is spent by the second is known only afterwards: there must be room for all the time that it may take.
        self._check_cost(limits, "a task", limits.cost_per_task, limits.cost_per_second * spec.hours_to_complete * 3600)
        if limits.max_tasks_per_day is not None and len(self.tasks_at) >= limits.max_tasks_per_day:
            # The oldest of the newest so many has to be a day old.
            until = self.tasks_at[-limits.max_tasks_per_day] + DAY_S
            raise BudgetError(
                f"{len(self.tasks_at)} tasks were paid for within 24 hours; max_tasks_per_day is "
                f"{limits.max_tasks_per_day}.",
                hint="It goes on by itself; raise max_tasks_per_day to go on earlier.",
                until=until,
            )

    def check_merge(self, spec: CampaignSpec, seconds: float) -> None:
        """Refuse a merge on RunPod that the budget has no room for; asked before each job is sent.

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
                f"{self.failures} cycles have failed in a row; max_failures is {limits.max_failures}.",
                hint="Look at the reason first.",
                verb="retry",
            )

    def _check_cost(self, limits: CampaignBudgetSpec, what: str, price: float, time: float) -> None:
        if limits.max_cost is None:
            return
        if self.spent + price + time > limits.max_cost or self.spent >= limits.max_cost:
            longest = f" and up to {time:g} for its time" if time else ""
            raise BudgetError(
                f"{self.spent:g} are spent, {what} costs {price:g}{longest}, and max_cost is {limits.max_cost:g}.",
                hint="Raise max_cost.",
            )


@dataclass(frozen=True, slots=True)
class CycleState:
    """A cycle as whoever holds its campaign sees it.

    Args:
        position: Which chunk it trains on, counted from 0 over all epochs: a cycle that ended without a model leaves
            its position to the next one, so that no chunk is skipped, and none is paid for twice.
        intent: What the step is about to do; null if it has not begun.
        kept: What the step has kept of something that runs elsewhere, under way or over; null if it has kept nothing.
        provider: Where its task was ordered, or may have been; null before that.
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
        """What the task at the provider is known by: the same however often it is asked for, until it is given up."""
        return f"{self.campaign_id}/{self.number}" + (f".{self.orders}" if self.orders else "")

    def key(self, step: StepName, what: str | None = None) -> str:
        """Return the idempotency key of something that a step asks of the server."""
        cycle = f"{self.number}.{self.retried}" if self.retried else str(self.number)
        return "/".join(part for part in (self.campaign_id, cycle, step.value, what) if part)


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A model that a cycle has made."""

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
        promoted_at: When it was promoted last, in Unix time; null if it never was.
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
