"""What the engine and the book say to each other about a cycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tunefleet.errors import ConflictError, InputError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.lifecycle.model_version import Stage
from tunefleet.spec.documents.campaign_document import CampaignBudgetSpec, CampaignSpec

TASK: Final = "task"
"""What is spent on a task at the provider; one row of it a task."""
SECONDS: Final = "seconds"
"""What is spent on the time that a task took."""
MERGE: Final = "merge"
"""What is spent on the time of a merge on RunPod."""
DAY_S: Final = 86_400.0


class LeaseLost(ConflictError):
    """Somebody else works on the campaign now, or it was stopped: whoever worked on it drops what they have."""


class Unreadable(InputError):
    """What is stored of a campaign's file is refused by this version."""


class BudgetError(ConflictError):
    """The next paid call would go over the budget.

    Args:
        message: Which limit, and where it stands.
        hint: The way out.
        until: When the call may be made after all, in Unix time; null if only a person can say so.
        verb: What a person types then, as in `needs_you`.
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
        spent: In all, in the units of the campaign's costs.
        tasks_at: When each task of the last 24 hours was paid for, oldest first, in Unix time.
        failures: Cycles that failed in a row.
    """

    spent: float
    tasks_at: tuple[float, ...]
    failures: int

    def check(self, spec: CampaignSpec) -> None:
        """Refuse a further task that the budget has no room for; asked before each paid call.

        Args:
            spec: With the limits.

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

        Args:
            spec: With the limits.
            seconds: How long the job may take.

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
        campaign_id: Of the campaign.
        name: Its name.
        owner: Whose it is.
        project: Where it is.
        spec: As it was when the cycle opened, or was retried; but the limits of the budget are the newest ones.
        number: Of the cycle, from 0.
        position: Which chunk it trains on, counted from 0 over all epochs: a cycle that ended without a model leaves
            its position to the next one, so that no chunk is skipped, and none is paid for twice.
        outcomes: Of the steps that are done.
        step: The one that is next, or under way.
        intent: What the step is about to do; null if it has not begun.
        tries: How often the step failed in a row.
        not_before: When it may be tried again, in Unix time.
        holder: Who works on it.
        retried: How often a person let the cycle go back to an earlier step.
        orders: How often the task at the provider was given up for another one.
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
        """Return the idempotency key of something that a step asks of the server.

        Args:
            step: That asks.
            what: Which of its requests, if there are several.
        """
        cycle = f"{self.number}.{self.retried}" if self.retried else str(self.number)
        return "/".join(part for part in (self.campaign_id, cycle, step.value, what) if part)


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A model that a cycle has made.

    Args:
        stage: What becomes of it.
        form: `model`, or `adapter` where nothing was merged.
        location: Where it is: `task_id` and `output` or `artifact_id` on this server, `url` elsewhere.
        lineage: What it was made of: chunk, order, candidate, base.
        evaluation: How it was measured, and how that compares.
        reason: Why it has its stage.
    """

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
        name: Of the model: its campaign's name.
        version: From 1.
        campaign_id: That made it.
        cycle: Of that campaign.
        created_at: Unix time.
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
