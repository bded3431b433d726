"""Interfaces between the engine, the steps of a cycle and the providers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tunefleet.campaign.service.cycle_state import CycleState
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.campaign.service.step_progress import Activity
from tunefleet.client import AsyncClient
from tunefleet.errors import TunefleetError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.orchestrator.context import Clock
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec, TaskType

# JSON object: a step's intent or outcome.
Outcome = Mapping[str, Any]
# Appends a line to the campaign's log.
Log = Callable[[str], Awaitable[None]]


class StepFailed(TunefleetError):
    """A step failed; retrying may help."""

    code = "step_failed"


class NeedsYou(StepFailed):
    """A step needs a user to act; it is still retried, in case the cause disappears."""

    def __init__(self, message: str, *, hint: str | None = None, verb: str = "retry") -> None:
        super().__init__(message, hint=hint)
        self.verb = verb


class CycleFailed(TunefleetError):
    """Retries cannot complete the cycle, so it becomes a dead letter."""

    code = "cycle_failed"


class OrderFailed(CycleFailed):
    """The provider reports that the task failed, which is the only reason to abandon a submitted task."""

    code = "order_failed"


class Misconfigured(CycleFailed):
    """The campaign's configuration cannot work, so the campaign is held until a user fixes it."""

    code = "misconfigured"


@dataclass(frozen=True, slots=True)
class Later:
    """A step has to wait; this is not a failure."""

    until: float
    why: str


@dataclass(frozen=True, slots=True)
class Base:
    """The model that a cycle starts from.

    Args:
        version: Version of the promoted model in the registry; None for the campaign's own base.
        digest: Digest of the artifact that replaces `repo`: the promoted model, or a folder that was uploaded with the
            campaign's file.
    """

    repo: str
    task_id: str | None = None
    version: int | None = None
    digest: str | None = None
    url: str | None = None
    revision: str | None = None
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Material:
    """The rows that a task trains on."""

    task_id: str
    artifact_id: str
    digest: str
    rows: int
    url: str | None = None
    object_key: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """A task at a provider.

    Args:
        since: Unix time from which it may have been placed; None if unknown.
    """

    key: str
    name: str
    base: Base
    data: Material
    hours: float
    task_type: TaskType
    spec: CampaignSpec
    uploads: Mapping[str, str] = field(default_factory=dict)
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that a provider has trained.

    Args:
        form: An adapter on the order's base, or a full model; None if the provider does not report it and the
            repository has to be inspected.
        fault: Why it cannot be published, so that it is not evaluated; None if it can.
    """

    ref: str
    form: Literal["adapter", "model"] | None
    name: str
    test_loss: float | None = None
    synth_loss: float | None = None
    score: float | None = None
    on_fleet: bool = False
    revision: str | None = None
    fault: str | None = None

    @property
    def label(self) -> str:
        """Label for logs: its name, and its location if that differs."""
        return self.name if self.name == self.ref else f"{self.name} ({self.ref})"


@dataclass(frozen=True, slots=True)
class Progress:
    """The status of a task at a provider.

    Args:
        cost_s: Billed duration in seconds; None if unknown.
        again_s: Seconds until the next check; by default `TUNEFLEET_CAMPAIGN_CHECK_S`.
    """

    state: Literal["running", "succeeded", "failed"]
    detail: str
    candidates: tuple[Candidate, ...] = ()
    cost_s: float | None = None
    again_s: float | None = None
    activity: Activity | None = None


class Provider(Protocol):
    """A place where training runs. One instance per campaign; nothing in it may block the event loop."""

    name: str
    paid: bool
    """Whether an order costs money: then the budget is checked before each."""
    fetches_from_store: bool
    """Whether it fetches rows from an object store, so that they are uploaded first."""

    async def submit(self, order: Order) -> str:
        """Place an order, and return its ticket: the provider's id for it."""

    async def find(self, order: Order) -> str | None:
        """Return the ticket of an order that was placed before; None only if there certainly is none.

        Called before an order is placed again. Raises if the provider does not respond or cannot determine it.
        """

    async def look(self, ticket: str) -> Progress:
        """Return the status of a task."""

    async def cancel(self, ticket: str) -> None:
        """Cancel a task, as far as the provider supports it; one that has ended stays unchanged."""

    async def close(self) -> None:
        """Close connections."""


# Type of the entry points in the group `tunefleet.providers`.
MakeProvider = Callable[[CampaignSettings, AsyncClient], Provider]


@dataclass(frozen=True, slots=True)
class StepContext:
    """Everything that a step works with."""

    state: CycleState
    repository: CampaignRepository
    client: AsyncClient
    provider: Provider
    settings: CampaignSettings
    clock: Clock
    log: Log

    @property
    def spec(self) -> CampaignSpec:
        """Spec of the campaign."""
        return self.state.spec

    def outcome(self, step: StepName) -> Outcome:
        """Return the outcome of an earlier step."""
        return self.state.outcomes[step]


class Step(Protocol):
    """One step of a cycle. Its actions must be idempotent."""

    name: StepName

    async def plan(self, context: StepContext) -> Outcome:
        """Return the step's intent, which is stored before `act`; has no side effects."""

    async def reconcile(self, context: StepContext, intent: Outcome) -> Outcome | Later | None:
        """Return the outcome of an earlier attempt that may have been killed; None if it has done nothing."""

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Carry out the intent, and return the outcome."""


class Repeatable:
    """A step that can simply act again after a crash.

    Its requests have an idempotency key of the cycle, its uploads are the same each time, or it changes nothing.
    """

    async def reconcile(self, context: StepContext, intent: Outcome) -> Outcome | Later | None:
        """Return None: the step acts again."""
        del context, intent
        return None
