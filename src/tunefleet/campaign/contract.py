"""What the engine, the steps of a cycle and the providers say to each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tunefleet.client import AsyncClient
from tunefleet.errors import TunefleetError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.orchestrator.campaigns.cycle_state import CycleState
from tunefleet.orchestrator.campaigns.engine_repository import Book
from tunefleet.orchestrator.campaigns.step_progress import Activity
from tunefleet.orchestrator.context import Clock
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec, TaskType

# JSON: what a step intends, or has done.
Outcome = Mapping[str, Any]
# Writes a line into the log of the campaign.
Log = Callable[[str], Awaitable[None]]


class StepFailed(TunefleetError):
    """A step did not come to its end; another try may."""

    code = "step_failed"


class NeedsYou(StepFailed):
    """A step goes on only when a person acts; it is tried again all the same."""

    def __init__(self, message: str, *, hint: str | None = None, verb: str = "retry") -> None:
        super().__init__(message, hint=hint)
        self.verb = verb


class CycleFailed(TunefleetError):
    """The cycle cannot be completed, however often it is tried: it becomes a dead letter."""

    code = "cycle_failed"


class OrderFailed(CycleFailed):
    """The provider says that the task has failed: only then is it given up once it was ordered."""

    code = "order_failed"


class Misconfigured(CycleFailed):
    """What the campaign's file asks for cannot work: the campaign is held until somebody has mended that."""

    code = "misconfigured"


@dataclass(frozen=True, slots=True)
class Later:
    """A step waits for something; that is no failure."""

    until: float
    why: str


@dataclass(frozen=True, slots=True)
class Base:
    """The model that a cycle begins with.

    Args:
        version: Of the promoted model in the registry; null for the campaign's own base.
        digest: Of the artifact that stands in the place of `repo`: the promoted model, or a folder that travelled with
            the campaign's file.
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
    """Rows that a task is trained on."""

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
        since: From when on it may have been placed, in Unix time; null if nobody knows.
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
    """A model that a provider has made.

    Args:
        form: An adapter on the order's base, or a whole model; null if the provider does not say it, then its
            repository does.
        fault: Why it could not be passed on, so that it is not measured; null if it can.
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
        """What logs call it: its name, and where it is if the name does not say it."""
        return self.name if self.name == self.ref else f"{self.name} ({self.ref})"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a task at a provider stands.

    Args:
        cost_s: How long it took that is paid for, in seconds; null if that is not known.
        again_s: In how many seconds to look again; by default `CHECK_INTERVAL`.
    """

    state: Literal["running", "succeeded", "failed"]
    detail: str
    candidates: tuple[Candidate, ...] = ()
    cost_s: float | None = None
    again_s: float | None = None
    activity: Activity | None = None


class Provider(Protocol):
    """Who trains. One is made for each campaign; nothing in it may block the event loop."""

    name: str
    paid: bool
    """Whether an order costs money: then the budget is asked before each."""
    fetches_from_store: bool
    """Whether it takes rows from an object store, so that they are uploaded first."""

    async def submit(self, order: Order) -> str:
        """Place an order and return its ticket: what the provider calls it."""

    async def find(self, order: Order) -> str | None:
        """Return the ticket of an order that was placed before; null only if there surely is none.

        Asked before an order is placed again. Raises if the provider does not answer, or cannot tell.
        """

    async def look(self, ticket: str) -> Progress:
        """Return where a task stands."""

    async def cancel(self, ticket: str) -> None:
        """End a task, as far as the provider can; one that is over already stays as it is."""

    async def close(self) -> None:
        """Let go of connections."""


# What an entry point of the group `tunefleet.providers` names.
MakeProvider = Callable[[CampaignSettings, AsyncClient], Provider]


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step works with."""

    state: CycleState
    book: Book
    client: AsyncClient
    provider: Provider
    settings: CampaignSettings
    clock: Clock
    log: Log

    @property
    def spec(self) -> CampaignSpec:
        """Of the campaign."""
        return self.state.spec

    def outcome(self, step: StepName) -> Outcome:
        """Return what a step before has done."""
        return self.state.outcomes[step]


class Step(Protocol):
    """One step of a cycle. Whatever it does twice must have the effect of once."""

    name: StepName

    async def plan(self, context: StepContext) -> Outcome:
        """Return what the step is about to do; stored before `act`, and changes nothing outside."""

    async def reconcile(self, context: StepContext, intent: Outcome) -> Outcome | Later | None:
        """Return what an earlier try has done, which may have been killed; null if it has done nothing yet."""

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Do it, and return what was done."""


class Repeatable:
    """A step that need not ask what an earlier try has done.

    What it submits has a key of the cycle's, what it puts somewhere is the same each time, or it changes nothing.
    """

    async def reconcile(self, context: StepContext, intent: Outcome) -> Outcome | Later | None:
        """Return nothing: the step acts again."""
        del context, intent
        return None
